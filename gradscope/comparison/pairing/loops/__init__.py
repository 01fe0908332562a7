"""Loops pair a scanned loop with the same loop written out, a batch with its parts, and a device with a mesh.

- `scanned_with_unrolled`: pairs the outputs of a loop, and slices of what it scans over, with tensors of single
  iterations.
- `calls_in_turn`: finds which call of a layer in one program is which in the other.
- `batch_parts`: finds layers that one program calls for the whole batch, and the other for each part of it.
- `joined_parts`: makes the value of a whole batch of those of its parts, in the order that the values prove.
- `micro_batches`: pairs the values of a whole batch with those of its parts.
- `split_batches`: pairs the values of parts of a batch with those of other parts of it.
- `means_of_parts`: pairs its means and sums with those of its parts.
- `shard_groups`: finds by their names the values that the shards of a mesh have in place of one.
- `shard_layouts`: how the values of shards make that of one device.
- `by_shards`: pairs the values of one device with those of the shards.
- `iteration_recipes`: proposes from the layers of a dump of which iterations a tensor may be made.
"""
