"""A history has what was recorded at which step of a training run, in a file of SQLite. Never imports JAX.

- `folder` names the files of a run, finds them, and locks the folder for the one process that writes.
- `database` has the tables of the file, their columns and units, and opens it.
- `history_rows` defines what is in a table's row.
- `history_writer` writes a history from a thread of its own, in one transaction a step.
- `renamed_tensors` finds the layers of runs that older versions began, whose names had the root's.
- `alarms` has the rules that raise alarms, and applies them step by step.
- `history_reader` reads a history that anybody may have written, after it has checked all of its schema.
- `value_histograms` defines the bins of histograms, and counts.
- `tensor_trends` summarises a series: its first and last value, and its slope.
- `views` state what a history has of one step as a dump would, how far the run came, and where a NaN in it began.

Vocabulary: a *run* is a folder with a history, checkpoints and what alarms saved. A step is *recorded* where the
history has a row for it.

Two guarantees decide the design:

- Whatever kills the writer, the history has whole steps only, and all that were written before. So a step is one
  transaction, with a write-ahead log where the file system can have one.
- A history may be untrusted. SQLite evaluates expressions that a schema holds: views, triggers, generated
  columns, indexes on expressions. So every statement of the schema has to be ours, letter by letter, before a table is
  read, and the work of a query is bounded by the size of the file.

Why SQLite (2026-11): an append-only file of our own would be faster to write, and nothing could read it. `sqlite3`,
pandas and DuckDB read this one while it is being written.
"""
