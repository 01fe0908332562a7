"""Explanations answer why a run's result is as it is, by running the loss once more.

- `nonfinite` searches for the operation in which a NaN or an infinity began.
- `zeros` searches for the reason why a gradient is zero.
- `row_lookups` computes indices of the batch again, and finds those beyond a table of parameters.
- `self_check` measures how much observing changed the gradients.
- `attempt` is the context that each search runs in, so that one that fails takes nothing down.
"""
