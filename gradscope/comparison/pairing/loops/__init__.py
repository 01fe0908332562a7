"""Loops pair a scanned loop with the same loop written out.

- `scanned_with_unrolled`: pairs the outputs of a loop, and slices of what it scans over, with tensors of single
  iterations.
- `iteration_recipes`: proposes from the layers of a dump of which iterations a tensor may be made.
"""
