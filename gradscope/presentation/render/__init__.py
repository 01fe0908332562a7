"""Rendering writes documents as text, Markdown, JSON, CSV or graphs.

A *document* is a sequence of tables and *notes* (a label and a sentence): everything that people read. `document` lays
one out for a *screen* (`screen`): a terminal of some width, or a pipe. `text_layout` lays out one table, `cells` writes
the cells of a column, `outline` writes paths as an indented list, and `heat_strip` draws the error along depth.
`markdown`, `structured` and `for_ci` write the other formats, and `graphs` writes a model's operations for two viewers.

Why tables are laid out here and not by rich (2026-11): one layout serves terminal and pipe, columns are dropped by
importance and do not all shrink, and a thousand lines take 40 ms and not a second.
"""
