"""Rounding states how far two tensors may be apart because numbers are rounded, beyond the default tolerance.

- `rounding_floors`: a *floor* is how far rounding can move a tensor whose terms cancel, in absolute terms.
- `floor`: the norms of one floor.
- `term_rounding`: how much of a gradient is rounding, where the sums that make it are not known.
- `innermost_layers`: the layers that read, make or use a tensor.
- `tensor_sizes`: root mean squares and norms of tensors.
- `pair_floors`: the floors of pairs of tensors.
- `inherited_precision`: the dtype that a tensor was computed in, by what it was computed from.
- `mixed_precision`: whether a program is meant to compute in fewer digits.
- `kinks`: how much of a gradient rounding decides, since a value is on the other side of a kink, as of a rectifier's.
- `kinked_gradients`: how far gradients may be apart because of kinks, there and in all that is computed from them.
- `accumulated_rounding`: how far rounding adds up with the depth of a network.
"""
