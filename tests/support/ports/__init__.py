"""Ports: one network written twice, as PyTorch has it and as JAX has it, and the faults that ports have.

The reference of each port is a stand-in of a PyTorch module in `jax.lax`: channels first, kernels `[out, in, ...]`. The
candidate has channels last, kernels `[..., in, out]`, other names or other scopes. Both are plain functions, so that
PyTorch does not have to be installed. A candidate can be made with one *fault*, and the port states where it first
shows.
"""
