"""This search finds the reason why a gradient is zero, exactly or but for rounding.

- `zero_gradients` follows a gradient that is exactly zero towards the loss. `neighbourhood` observes the operations
  around it, `zero_uses` classifies an operation whose derivative is zero there, and `use_results` has what comes of it.
- `loop_steps` follows steps through loops, and `operand_names` names the operands that are arguments or constants.
- `softmax_rows` finds softmaxes whose rows have a single weight, by a mask or by saturation, `satisfied_terms` terms of
  a loss whose margins are kept.
- `rounding_zeros` chooses the gradients that may be rounding errors. `invariance` displaces their values, and finds the
  operation that takes the displacement out, as `displacement` measures it.
"""
