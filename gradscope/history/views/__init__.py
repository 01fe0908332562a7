"""Views compute from the rows of a history what it has no rows for.

- `at_step` makes the manifest of a dump of what a history has of one step.
- `frozen_parameters` finds those that no recorded step changes, though they have a gradient.
- `loss_fall` states whether the loss has fallen, `climbing` whether the updates climb it.
- `shrinking` states whether the weights shrink away.
- `small_updates` states that updates hardly move the parameters, and why.
- `rounded_updates` finds parameters that are too coarse for their updates.
- `learning` has these for a report.
- `run_ending` tells how far a run came, and where what was not finite began; one that came to no step is removed.
"""
