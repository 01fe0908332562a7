"""Exporting writes what a history has for programs that do not read SQLite.

- `long_table` yields every number of a history as a row of one long table.
- `event_files` writes event files of TensorBoard, of a history or while a run goes on.
"""
