"""Values pair tensors by what they hold, whatever they are called.

- `by_values`: equal values in any layout.
- `equality`: whether two tensors have equal values in any layout.
- `equal_classes`: which classes of equal tensors of two dumps are equal.
- `same_use`: which of several equal constants is meant, by the layers that use them.
- `misnamed`: names that are alike, and whose values are under each other's.
- `parts`: packed tensors, and the tensors that are packed in them.
- `cut_gradients`: gradients of equal values that arrive in one of the programs alone.
- `sums`: tensors that add up to one of the other dump, such as the two biases of an LSTM.
"""
