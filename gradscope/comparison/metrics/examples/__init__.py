"""Per-example gradients have errors that are *random*, different in each example, and *bias*, the same in all.

Both are measured in units of the batch's own *spread*.

- `example_spread` defines the error, and how it adds up.
- `example_errors` computes it from the elements.
"""
