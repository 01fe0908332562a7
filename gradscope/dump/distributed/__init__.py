"""Distributed reads and writes the dump of a run of several JAX processes: a folder of one file per process.

- `process_writer` writes this process's file. Process 0 also writes the index, after all files are on the disk.
- `folder_swap` puts a folder in the place of the one that it replaces.
- `index` writes and reads `index.json`: the manifest of the complete dump, and facts that identify each file.
- `process_reader` opens such a folder, with or without an index.
- `assembled_tensor` joins the shards of a tensor into one array, after checking that they tile it.

Vocabulary: a *shard* is the box of a global array that one process stores, as in a JAX sharding: a start index per axis
and a shape. The shards of a *global* array tile it: together they cover each element exactly once. A folder without an
*index* is an incomplete dump: the processes did not finish together.
"""
