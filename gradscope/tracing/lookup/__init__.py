"""Lookup finds values, layers and operations of a trace by the names that a user types, or by what they compute.

1. `named_values` finds a value by a name.
2. `layer_call` finds one call of a layer, as a function of the values that it reads.
3. `operations` finds the operations that make and read a value.
4. `constants` finds the values that neither an argument nor an operation provides.
5. `bounded_functions` finds softmaxes, sigmoids and the like inside layers by what they compute.
6. `softmax_neighbours` finds the noise that is added to what these receive, `clips` clips by two numbers.
7. `batch_broadcasts` finds operations of a loss that pair every example with every other.
8. `step_functions` finds step functions at which gradients end of which a reduction hides it.
9. `softmax_products` finds softmaxes whose shares weight along another axis than theirs.
10. `named_sources` finds the nearest values with a name that a value is computed from.
"""
