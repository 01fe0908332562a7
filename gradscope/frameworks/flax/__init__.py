"""Flax's modules become models here.

- `linen` and `nnx` adapt modules of its two interfaces.
- `transformers` adapts the Flax models of that library, each a Linen module with its parameters.
"""
