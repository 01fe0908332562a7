"""Layers of one kind differ in a few facts, which the tensors of both programs show.

- `kernel_differences`: layers with a kernel, which differ in padding, in how they take the kernel, or in a bias.
- `kernel_uses`: how a layer uses its kernel.
- `unpaired_vectors`: a bias or a scale that one program alone has.
- `read_values`: what layers may read of values that are pairs.
- `scaled_reads`: what layers read that scale and shift a value first.
- `sampled_products`: some elements of the products of a kernel.
- `reduction_differences`: pools and means over axes, which take something else of them.
- `functions`: functions of the same values, as gates, conditions, interpolations and rotations.
- `norms`: norms, which read another sum or differ in what they add, divide by, subtract or multiply by.
- `cells`: recurrent layers, which differ in a gate, a function, a bias, a direction or a state.
- `computed_dtypes`: layers that compute in fewer digits inside than those of the reference.
- `flatten_orders`: the orders of its axes in which the programs flatten one value.
"""
