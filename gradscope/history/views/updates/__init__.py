"""Each module states what the updates of a whole run do to its parameters.

- `climbing` states that they climb the loss.
- `frozen_parameters` finds those that no recorded step changes, though they have a gradient.
- `left_out_updates` states that no recorded step makes any, as gradients are not finite.
- `rounded_updates` finds those that are too coarse for their updates.
- `shrinking` states that the weights shrink away.
- `small_updates` states that the updates hardly move the parameters, and why.
- `uneven_updates` states that they hardly move some layers, and move others.
"""
