"""Suspects are the steps that may have made a difference and are in one of the programs only.

Where everything that a step is computed from agrees, the step has no counterpart, and the next value that is compared
differs, the step may be at fault, or the layer that computes that value. The tensors of both dumps tell most often.

- `suspects`: chooses between the steps and the layer, and puts the steps in order.
- `kernel_gradients`: whether the layer of the candidate reads what that of the reference reads.
- `correlations`: the gradients that a kernel can have, for what a layer reads and the gradient that arrives.
- `plain_steps`: steps that cannot be at fault, and layers whose own scale is.
"""
