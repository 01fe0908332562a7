"""Tables by block show a complete dump, or a model, in a given number of lines, for one screen.

- `folded_blocks` is the tree of layers, and folds blocks that repeat; `contents` are the rows of each block.
- `block_cells` are the numbers of a line that stands for several blocks, `cost_cells` those of a model that has not
  run, and `overview` chooses the lines; `call_labels` tells apart calls whose names differ in a number only.
"""
