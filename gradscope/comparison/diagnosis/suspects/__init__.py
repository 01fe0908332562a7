"""Suspects are the steps that may have made a difference and are in one of the programs only.

Where everything that a step is computed from agrees, the step has no counterpart, and the next value that is compared
differs, the step may be at fault, or the layer that computes that value. The tensors of both dumps show it most often.

- `suspects`: chooses between the steps and the layer, and puts the steps in order.
- `gradient_suspects`: the same backward.
- `gradient_makers`: the layer that returns the first gradient that differs, or the code before it.
- `reading`: which steps are right by what the layer of the divergence reads.
- `replaying`: a stretch of a program computed again with another step in the place of one.
- `flat_steps`: steps that one program leaves out, as gradients pass where they are flat.
- `wrong_parameters`: the parameters that differ, or that the other program does not use.
- `steps`: a step that only one of the programs has, and its layer.
- `turned_values`: values that agree in an order which nothing else has.
- `turned_parameters`: parameters in a layout that few others have.
- `plain_steps`: steps that cannot be at fault or are well known, and layers whose own scale is at fault.
"""
