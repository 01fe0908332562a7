"""Lookup finds values, layers and operations of a trace by the names that a user types, or by what they compute.

1. `named_values` finds a value by a name.
2. `layer_call` finds one call of a layer, as a function of the values that it reads.
3. `operations` finds the operations that make and read a value.
4. `constants` finds the values that neither an argument nor an operation provides.
5. `functions` finds softmaxes, clips and the like inside a model.
6. `batch_broadcasts` finds operations of a loss that pair every example with every other.
7. `step_functions` finds step functions at which gradients end of which a reduction hides it.
8. `softmax_axes` finds softmaxes over the examples.
9. `collectives` finds the operations by which devices exchange values.
10. `named_sources` finds the nearest values with a name that a value is computed from.
"""
