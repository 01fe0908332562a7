"""Tensors without a counterpart: which there are, and why some of them need none.

- `incomparable_inputs`: the gradients of inputs that two programs need not share.
- `paired_dumps`: a dump, and what its pairing with the other says of its tensors.
- `unmatched` lists the tensors without a counterpart, and why some do not count.
- `unmatched_state`: why state that only one program keeps, such as running statistics, does not count.
"""
