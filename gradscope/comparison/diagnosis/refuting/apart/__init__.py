"""Apart are the values of a pair that are two steps of one computation, which both programs take.

- `steps_apart`: whether a pair is of two steps, and of which.
- `functions_between`: the activation function that one value of a pair is of the other, and whether it is applied.
- `functions_read`: which function of a value a layer reads in its own program.
- `dense_readers`: the dense layers that read a value, and what they make of it first.
- `correlations`: the gradients that a kernel can have, for what a layer reads and the gradient that arrives.
- `norms_between`: the norm that one value of a pair is of the other, which both programs take.
- `residuals_between`: the residual sum that one value of a pair is, of which the other is the branch.
- `biases_between`: the bias that one value of a pair has, and the other program adds elsewhere.
- `other_operations`: the pairs of operations that are no pairs, as all that has a name of its own agrees.
- `moved_gradients`: gradients that two programs hand to other ones of several equal elements.
- `pair_values`: both values of a pair or both gradients, and whether a reader takes notice of a part of a value.
"""
