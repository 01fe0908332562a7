"""Layers with a kernel differ in how they take it and what they read, and in what they add.

- `kernel_differences`: layers that differ in padding, in how they take the kernel, or in a bias.
- `kernel_uses`: how a layer uses its kernel.
- `part_orders`: layers that add the parts of a bias to the products of other parts of a kernel.
- `scaled_reads`: what layers read that scale and shift a value first.
- `sampled_products`: some elements of the products of a kernel.
"""
