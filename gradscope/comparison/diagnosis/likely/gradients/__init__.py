"""Gradients of parameters may differ where all else agrees: a parameter is used in other places, or in parts.

So may those of inputs, which several layers read.

- `stacked_gradients`: slices of a stack, or rows of a table, of which one program alone has a gradient.
- `shared_gradients`: one parameter that is several in the other program, whose gradients add up.
- `use_terms`: a use of a parameter that contributes to its gradient in one program alone.
- `read_terms`: a reader of an input that contributes to its gradient in one program alone.
"""
