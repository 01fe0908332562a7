"""Views compute from the rows of a history what it has no rows for.

- `at_step` makes the manifest of a dump of what a history has of one step.
- `family_series` reads a statistic of a family's tensors over time.
- `loss_fall` states whether the loss has fallen.
- `recorded_batches` states whether the batches are one, or in an order.
- `broken_bounds` states whether integers of the batches are beyond the rows, values or classes that they look up.
- `updates` has what the updates do to the parameters.
- `learning` has these for a report.
- `run_ending` tells how far a run came, and where what was not finite began; one that came to no step is removed.
"""
