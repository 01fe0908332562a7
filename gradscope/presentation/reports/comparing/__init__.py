"""Comparing has the reports of comparisons: of two dumps, a series, two runs, one tensor, and layers by themselves.

- `comparison`, `series`, `compared_runs`, `mesh_report`, `difference` and `isolation` are the reports.
- `comparison_rows` makes lines of the rows of a comparison, and `comparison_overview` the tables of one screen.
- `run_notes` are the notes on how the runs differ.
- `tensor_cases` makes cases of tests of the rows, for systems of continuous integration.
"""
