"""The Python interface: what the command line does, for programs and notebooks.

Two modules, for the two wings: `reading` opens and compares dumps and never imports JAX, `observing` makes them. All of
it is re-exported from `gradscope`, on first use, so that `import gradscope` costs nothing.
"""
