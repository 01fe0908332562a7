"""Proof: are a model's gradients right? Held to finite differences, to `jax.grad`, and to themselves run again.

- A *claim* is a derivative that automatic differentiation gives; a *line* is a function of one number, the loss along a
  direction, whose derivative at zero the claim is about. `differences` estimates that derivative with the error that is
  to be expected of it, `claims` compares the two.
- Parameters are claimed leaf by leaf where they are few, else together, and by halves where they disagree (`leaves`).
- Functions with differentiation rules of their own are claimed one by one, at the operands that they have in the model
  (`rules`): the loss being wrong says that some rule is, this says which.
- A *verdict* is a row per claim (`proving`).

All of that is computed in float64, whatever the model computes in, but at the parameters and the batch that the model
has in its own precision. Where a function has a kink (a `relu` at zero, a tie of maxima), the two sides have different
derivatives and no claim is wrong: it is looked at again a little beside, and said to be *not smooth here*.
"""
