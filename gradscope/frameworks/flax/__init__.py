"""Flax's modules become models here.

- `linen` and `nnx` adapt modules of its two interfaces.
- `nnx_state` has a step's modules of NNX keep what a loss makes of their running averages and random streams.
- `transformers` adapts the Flax models of that library, each a Linen module with its parameters.
"""
