"""The entries of a manifest, which are nearly all of its text, and what of them takes little memory.

- `packed_statistics` keeps the statistics of many tensors by column.
- `compiled_entries` decodes entries with msgspec, where that is installed.
- `entry_fields` reads one entry out of untrusted JSON, field by field.
"""
