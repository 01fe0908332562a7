"""Replaying computes a stretch of a program again, with another formula in the place of one of its steps.

Where a port has no entries for the steps of a stretch, as of an attention, what is compared behind says which of them
is another in the port: with that one replaced, the steps behind it make what the port has there. Where both programs
have all that a norm reads, its formula says whether the norm makes an error of its own.

- `replaced_steps`: replaces one step after another, and compares what follows with the other program.
- `carried_errors`: computes one norm again in both programs, forward or backward.
- `stretch`: the steps between what is compared, their formulas, and what the other program has.
- `formulas`: what a formula is.
- `step_formulas`: the formula of a step, whatever kind it is.
- `contractions`: products of two values, as the scores and the context of an attention.
- `masked_softmax`: shares of a softmax.
- `dense_formulas`: dense layers.
- `normalisations`: layers that normalise.
- `sums_of_terms`: residuals, affine steps, and values that are joined.
"""
