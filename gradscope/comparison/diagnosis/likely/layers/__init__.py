"""Layers of one kind differ in a few facts, which the tensors of both programs show.

- `kernels`: layers with a kernel, which differ in padding, in how they take it, in a bias, or in what they read.
- `unpaired_vectors`: a bias or a scale that one program alone has.
- `added_constants`: parameters that differ by a constant which one of the programs adds by itself.
- `read_values`: what layers may read of values that are pairs.
- `reduction_differences`: pools and means over axes, which take something else of them.
- `functions`: functions of the same values, as gates, conditions, interpolations and rotations.
- `norms`: norms, which read another sum or differ in what they add, divide by, subtract or multiply by.
- `cells`: recurrent layers, which differ in a gate, a function, a bias, a direction or a state.
- `computed_dtypes`: layers that compute in fewer digits inside than those of the reference.
- `flatten_orders`: the orders of its axes in which the programs flatten one value.
"""
