"""Values pair tensors by what they hold, whatever they are called.

- `by_values`: equal values in any layout.
- `equality`: whether two tensors have equal values in any layout.
- `equal_classes`: which classes of equal tensors of two dumps are equal.
- `same_use`: which of several equal constants is meant, by the layers that use them.
- `misnamed`: names that are alike, and whose values are under each other's.
- `by_parts`: parts of packed tensors, such as the query, key and value of one kernel, or the gates of an LSTM.
- `part_candidates`: which tensors may be parts of a packed one, without comparing it with all.
- `uneven_parts`: parts of several sizes, such as the keys and values that several queries share.
- `cut_gradients`: gradients of equal values that arrive in one of the programs alone.
- `packed_parameters`: which parameters are packed in which, by a pairing.
- `sums`: tensors that add up to one of the other dump, such as the two biases of an LSTM.
"""
