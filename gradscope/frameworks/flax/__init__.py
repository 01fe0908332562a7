"""Flax's modules as models.

- `linen` and `nnx` adapt modules of its two interfaces.
- `transformers` adapts the Flax models of that library, each a Linen module with its parameters.
"""
