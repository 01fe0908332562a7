"""Explanations answer why a run's result is as it is, by running the loss once more.

- `nonfinite` searches for the operation in which a NaN or an infinity began. `replay` runs that single operation again,
  and `known_causes` says what went wrong in it and how to repair it.
- `zero_gradients` searches for the reason why a gradient is exactly zero. `neighbourhood` observes the operations
  around it, and `zero_uses` classifies an operation whose derivative is zero there.
- `self_check` measures how much observing changed the gradients.
"""
