"""A database of SQLite holds the history of a run.

- `schema` has its tables.
- `untrusted_database` opens one that anybody may have written, so that nothing in it runs.
"""
