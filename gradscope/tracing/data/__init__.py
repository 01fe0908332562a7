"""Data are variables and batches read from files, with messages where they do not fit the model.

- `checkpoints` reads variables: `files` opens the file, `renaming` renames its tensors (`--map-keys`) or proposes how,
  `variable_names` finds the variables among them, `axes` and `axes_of_one` infer their layout, `mismatches` lists
  what does not fit, and `absent_collections` tells what may be missing.
- `data_shapes` reads the shapes of a batch's tensors; `single_tensors` reads one tensor (`--feed`, `--cotangent`).
"""
