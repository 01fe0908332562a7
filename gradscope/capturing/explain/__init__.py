"""Explanations answer why a run's result is as it is, by running the loss once more.

- `nonfinite` searches for the operation in which a NaN or an infinity began.
- `zeros` searches for the reason why a gradient is zero.
- `row_lookups` computes indices of the batch again, and finds those beyond what they look up.
- `one_hot_labels` finds labels that begin at 1 where classes begin at 0.
- `index_bounds` finds how large the integers of a batch may be, whatever they are.
- `known_integers` computes the integers of a batch again, and what a few operations make of them.
- `self_check` measures how much observing changed the gradients.
- `attempt` is the context that each search runs in, so that one that fails takes nothing down.
"""
