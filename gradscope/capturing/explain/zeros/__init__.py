"""The search for the reason why a gradient is zero, exactly or but for rounding.

- `zero_gradients` follows a gradient that is exactly zero towards the loss. `neighbourhood` observes the operations
  around it, and `zero_uses` classifies an operation whose derivative is zero there.
- `invariance` displaces what has a gradient of rounding errors, and finds the operation that takes the displacement out.
"""
