"""References are arrays that operations read and write in place (`jax.new_ref`); here they become values.

Which value flows where through a reference is not in the variables of a jaxpr, and a parameter that reaches the loss
through one would seem unused. So before anything is looked for in a trace, the program is run again with a *cell* in
the place of each reference: reading returns the cell's value, writing replaces it, and loops, branches and checkpoints
receive and return the values of the cells that they touch. Gradients are those of JAX, which differentiates references
as values, too.

- `reference_cells` has the cells, and hands them to constructs and back by their values.
- `accesses` reads and writes a part of a cell's value.
- `without_references` traces a function so.
"""
