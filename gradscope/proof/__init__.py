"""Proof checks a model's gradients against finite differences, `jax.grad`, and a second run.

- A *claim* is a directional derivative by automatic differentiation, and the loss as a function of the step along that
  direction. `differences` estimates the derivative with an error estimate, and `claims` compares the two.
- `leaf_claims` checks the gradient of each parameter by itself where there are few, else of all together. Where they
  disagree, it bisects the parameters.
- `rule_claims` checks each function with a `custom_vjp` or `custom_jvp` rule at the operands that it has in the model.
  A wrong gradient of the loss shows that some rule is wrong; this shows which.
- `stopped_gradients` keeps values of `stop_gradient` constant, which finite differences would otherwise see change.
- `proving` collects one row per claim, and the verdict.

Everything is computed in float64, at the parameters and the batch that the model has in its own precision. Where a
function has a kink (`relu` at zero, a tie of maxima), its one-sided derivatives differ and no claim is wrong. Such a
claim is checked again at a nearby point and reported as *not smooth here*.
"""
