"""Proof checks a model's gradients against finite differences, `jax.grad`, and a second run.

- A *claim* is a directional derivative by automatic differentiation, and the loss as a function of the step along that
  direction. `differences` estimates the derivative with an error estimate, and `claims` compares the two.
- `leaf_claims` checks the gradient of each parameter by itself where there are few, else of all together. Where they
  disagree, it bisects the parameters.
- `rules` checks each function with a `custom_vjp` or `custom_jvp` rule at the operands that it has in the model.
  A wrong gradient of the loss shows that some rule is wrong; this shows which, for which argument, by which factor.
- `solvers` runs iterative solvers longer. An error that shrinks with their tolerance is no error of a rule.
- `wide_programs` compute in float64 what a program computes in a narrow type, where differences are too coarse.
- `surrogate` keeps values of `stop_gradient` constant, and takes a rule that is allowed to be no derivative as right,
  and that of gamma draws, where finite differences would otherwise see the values change.
- `proof_rows` are the rows, one per claim. `proving` collects them, and the verdict.

Everything is computed in float64, at the parameters and the batch that the model has in its own precision. Where a
function has a kink (`relu` at zero, a tie of maxima), its one-sided derivatives differ and no claim is wrong. Such a
claim is checked again at a nearby point and reported as *not smooth here*. So is a line along which differences agree
at no step, such as one through a chaotic map.
"""
