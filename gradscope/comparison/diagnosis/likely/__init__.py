"""Likely explanations of a difference are simple relations between what one program has and the other.

- `likely_causes`: relations between two tensors that differ: swapped, transposed, permuted, a multiple.
- `stored_values`: parameters and state that have the values of another one, or one number in each element.
- `likely_parts`: tensors of one side only that others of the other side may make up.
- `other_forms`: functions of one value that the programs compute in two forms, such as a GELU by tanh.
- `sum_differences`: values that are functions of other sums, as where a residual is left out.
- `layers`: norms, and layers with a kernel, that differ in a few facts; values that are flattened in another order.
- `dropouts`: a dropout that one value is behind and the other is not.
- `running_statistics`: running statistics that move by another share, and variances that are divided by other numbers.
- `different_batches`: batches of different sizes, with some examples in common, or with rows in several orders.
- `gradients`: gradients of parameters that are used in other places, or in parts.
- `losses`: losses that differ, and values of one program alone from which only they are computed.
"""
