"""The manifest describes a dump: everything but the tensors' bytes, stored as one JSON document inside the file.

- `manifest` defines the dataclasses: `Manifest`, its entries, layers, ledger, and more.
- `codec` converts a manifest to JSON text and back.
- `entries` reads the entries, which are most of it, and packs their statistics.
- `json_fields` reads typed values out of an untrusted JSON object, `json_text` reads and writes strict JSON text,
  within the bounds of `json_scan`.
- `operation_facts` defines what it says of single operations inside layers.
- `layer_graph`: which values and gradients each value and gradient is computed from.
- `provenance` collects versions, the command line and hashes of the inputs.

Vocabulary: an *entry* describes one record: its tensor's statistics, origin, and location in the file. The *ledger*
counts the captured values and lists the missing ones, with reasons.
"""
