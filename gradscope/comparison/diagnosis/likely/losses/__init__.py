"""Losses may differ where all else agrees, or be computed from values that one program alone has.

- `loss_difference`: losses that differ, and whether that is their reduction: all gradients are the same multiple.
- `before_loss`: the values of one program alone from which only the loss is computed.
"""
