"""Pairs of values of other sizes, of which one has all that the other has.

- `repeated_values`: values that one program repeats along axes, such as positions for every example.
- `read_slices`: values of which the loss reads a slice, which is all that the other program computes.
"""
