"""The bench of reading: the time of commands that read dumps, and of those that read nothing.

- `files` writes the dumps and foreign files that are read.
- `cases` has what is measured, against what, and the limit.
- `measuring` runs commands, and writes the results as JSON and as a page.
"""
