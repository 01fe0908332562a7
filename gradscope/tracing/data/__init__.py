"""Data are variables and batches read from files, with messages where they do not fit the model.

- `checkpoints` reads variables: `checkpoint_files` opens the file, in a folder the one that `checkpoint_folders` finds;
  `renaming` renames its tensors (`--map-keys`) or proposes how, `variable_names` finds the variables among them, `axes`
  and `axes_of_one` infer their layout, and `mismatches` lists what does not fit.
- `data_shapes` reads the shapes of a batch's tensors; `single_tensors` reads one tensor (`--feed`, `--cotangent`);
  `file_bounds` limits the memory that either takes.
"""
