"""Data are variables and batches read from files, with messages where they do not fit the model.

- `checkpoints` reads variables: `checkpoint_files` opens the file, in a folder the one that `checkpoint_folders` finds;
  `key_map` renames its tensors (`--map-keys`), `variable_names` finds the variables among them, `axes` infers their
  layout, `mismatches` lists what does not fit, and `renaming_hints` proposes what to write.
- `data_shapes` reads the shapes of a batch's tensors; `single_tensors` reads one tensor (`--feed`, `--cotangent`);
  `file_bounds` limits the memory that either takes.
"""
