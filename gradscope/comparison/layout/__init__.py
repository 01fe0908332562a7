"""Layout describes the order of axes of tensors, and recipes that make one tensor of others.

- `operands`: an *operand* is one tensor of a pair: `StoredOperand` reads it from a dump, `DerivedOperand` holds what a
  recipe made in memory.
- `recipes`: a *recipe* makes the counterpart of a tensor from tensors of the candidate by the steps of `recipe_steps`
  (transpose, reshape, split, stack, ...). A recipe without steps is *plain*.
- `layouts`: a *layout* is an order of axes, and of axes split or merged, found from a sample of the values.
  `interleaved_layouts` are those in which the halves of heads are interleaved.
- `spreading`: in which shapes an array can be added to a larger value.
- `stacked_steps`: the same steps for every slice of a stack.
- `joined_statistics`: the statistics of several tensors together, where their elements are not known.
- `example_orders`: in which order one value has the examples of another.
"""
