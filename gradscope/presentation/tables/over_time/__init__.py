"""Over time are the tables of a training run.

- `run_tables` makes those of one step, of trends, and of one tensor or number; `histogram_table` that of histograms.
- `repeated_names` finds names that differ in numbers only, as the iterations of a loop and blocks that repeat, and
  `folded_trends` makes the table of trends in which they share a line.
- `sparkline` draws a series in one line.
"""
