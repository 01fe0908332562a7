"""Records are made of a run: each observed tensor is measured and written with its statistics.

- `pending_tensors` lists the tensors of a run before they are measured; `term_records` adds the terms of gradients
  (`--terms`) and `example_gradients` the gradients of single examples (`--per-example`).
- `measure` computes the statistics; `prefetch` does so in a thread, ahead of the writer.
- `session` streams the records of a run, and keeps the ledger and the layer tree (`layer_tree`).
- `saturations` reads how far bounded functions inside layers, and clips, are at their limits.
- `explanations` searches for where a NaN began, and why gradients are zero, after the last record.
- `distributed` selects the writer, and the shards that this process writes under `jax.distributed`.
"""
