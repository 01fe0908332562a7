"""Sources open everything that can be read as a dump: gradscope's own files, foreign files, and captures in memory.

- `dump_file` defines `DumpFile`, the `DumpSource` of an opened file or folder, and `Contents`, which the modules below
  produce: a manifest, and a reader for each tensor.
- `archive` checks and opens an `.npz` that gradscope wrote.
- `foreign` turns tensors of *foreign* files, which another program wrote, into contents without statistics.
- `numpy_files` finds the tensors of foreign `.npz` and `.npy` files, `safetensors` those of `.safetensors` files.
- `memory_dump` is a dump that was never written to a file, `whole_arrays` what follows from arrays had as a whole.
"""
