"""Structure pairs tensors by their places in two programs, whatever they hold.

- `by_structure`: the same place, by parameters, operations and order.
- `owner_names`: of a dump without layers, values by the parameters that are named after them.
- `packed`: what one program has as one layer or value, and the other as several.
- `left_out_roots`: layers whose names have that of the root around them in one dump alone.
- `second_names`: second names of tensors whose first names are paired.
- `updated_state`: what a program returns beside the loss, by the state that it updates.
- `uncertain_names`: which names of values count, and when, where those of parameters differ.
- `reversed_loops`: which iterations have another number, where one program runs a loop in reverse.
- `shared_parameters`: which parameters layers of two programs have in common, of stacked ones by iterations.
- `placing`: how much speaks for two values being in the same place.
"""
