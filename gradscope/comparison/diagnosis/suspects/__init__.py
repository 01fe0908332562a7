"""Suspects are the steps that may have made a difference and are in one of the programs only.

Where everything that a step is computed from agrees, the step has no counterpart, and the next value that is compared
differs, the step may be at fault, or the layer that computes that value. The tensors of both dumps show it most often.

- `suspects`: chooses between the steps and the layer, and puts the steps in order.
- `gradient_suspects`: the same backward.
- `readers`: what the layer of one program reads, where only the other has an entry for that.
- `read_steps`: the steps of either program that are right or wrong by what the layer behind them reads.
- `recovered_values`: what a layer reads, where no tensor has that.
- `correlations`: the gradients that a kernel can have, for what a layer reads and the gradient that arrives.
- `wrong_parameters`: the parameters that differ, or that the other program does not use.
- `steps`: a step that only one of the programs has, and its layer.
- `turned_values`: values that agree in an order which nothing else has.
- `step_kinds`: what a step computes, and what could be in its place.
- `plain_steps`: steps that cannot be at fault or are well known, and layers whose own scale is at fault.
"""
