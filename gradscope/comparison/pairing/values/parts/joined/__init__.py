"""Joined parts pair a tensor of one dump with tensors of the other, mostly of several sizes, that are joined in it.

- `uneven_parts`: parts one after the other along an axis, such as the keys and values that several queries share.
- `grid_parts`: parts that are joined along two axes, such as the gates of an LSTM for the input and for the state.
- `joined_tensors`: the steps that join parts, and that take them apart again.
- `free_parts`: which tensors may be parts of another one, by their shapes.
- `shared_elements`: rules out tensors that have nothing to do with each other, without comparing them.
"""
