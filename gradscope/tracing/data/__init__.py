"""Data are variables and batches read from files, with messages where they do not fit the model.

- `checkpoints` reads variables: `checkpoint_files` opens the file, `key_map` renames its tensors (`--map-keys`), and
  `mismatches` lists what does not fit.
- `data_shapes` reads the shapes of a batch's tensors; `single_tensors` reads one tensor (`--feed`, `--cotangent`).
"""
