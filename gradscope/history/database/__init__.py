"""A database of SQLite holds the history of a run.

- `schema` has its tables.
- `untrusted_database` opens one that anybody may have written, so that nothing in it runs.
- `settled_copy` copies one that a process left in the middle of something, for which SQLite would change it.
- `checked_tables` reads the tables of such a one, each value of which is checked.
- `tensor_series` has the statistics of many tensors over time.
- `writable_database` makes one, and opens it to write; `writing_thread` is the thread that does so.
"""
