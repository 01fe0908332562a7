"""What a manifest says of single operations inside layers, which are no tensors of the dump.

- `saturation` defines how far a bounded function inside a layer is at its limits.
- `batch_broadcast` defines an operation of a loss that pairs every example with every other.
- `out_of_bounds` defines a look-up of rows that a table does not have.
"""
