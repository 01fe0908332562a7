"""A target's file or module is imported, as if Python ran it, and may change what it finds.

- `import_location` imports it, and keeps gradscope and its threads as they are.
- `replaced_functions` remembers the functions that others call, and finds those that it puts in their place.
"""
