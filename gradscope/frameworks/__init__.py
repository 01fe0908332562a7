"""Foreign libraries, one module or package each, imported only where the user's own model needs them already.

`torch` stands apart: it writes a dump by itself, without JAX, and so is above what writes and measures; nothing in the
package imports it.
"""
