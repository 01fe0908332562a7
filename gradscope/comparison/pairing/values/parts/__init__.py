"""Parts pair packed tensors of one dump with the tensors of the other that are packed in them.

- `by_parts`: parts of packed tensors, such as the query, key and value of one kernel, or the gates of an LSTM.
- `part_candidates`: which tensors may be parts of a packed one, without comparing it with all.
- `part_names`: what the parts of a packed tensor are called, by those whose parts are known.
- `constant_parts`: the parts of a constant, whose values show none.
- `used_in_turn`: the parts of a stack by when both programs use them.
- `joined`: parts of several sizes, along an axis or two.
- `parts_beside_zeros`: biases in a joined one that has zeros where the other program has no bias.
- `packed_parameters`: which parameters are packed in which, by a pairing.
- `measured_parts`: packed tensors of which only statistics are known.
"""
