"""Limits are how far the tensors of pairs may be apart by default.

- `noise`: a *noise floor* is how far a tensor of the reference moves under changes that make no difference. A
  calibrated reference stores one with each computed tensor, and is judged by it.
- `measured_pairs`: pairs with the evidence of how they differ, and the limits that they are judged by.
- `common_factors`: errors that are a factor of a tensor, which are no rounding however small they are.
- `joint_sources`: what the tensors of pairs are computed from, as far as either program tells.
"""
