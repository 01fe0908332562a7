"""The entries of a manifest and its other long lists are nearly all of its text; they are read in little memory.

- `packed_statistics` keeps the statistics of many tensors by column.
- `packed_values` has columns of texts and of histograms, in little memory.
- `compiled_entries` decodes entries with msgspec, where that is installed.
- `entry_fields` reads one entry out of untrusted JSON, field by field.
- `list_parts` cuts the text of a long list in parts.
- `held_bytes` measures what is made of one.
- `released_text` gives the memory of a text back while it is read.
- `manifest_text` reads the text of a long manifest part by part, within a bound of memory.
"""
