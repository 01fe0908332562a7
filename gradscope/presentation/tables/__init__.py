"""Tables are facts about a dump as columns and rows of values, before they are rendered.

- A *row* (`dump_rows`) has the facts about one tensor: its family, its name, and values by column name. There is one
  row for every family and name of a dump; a `Query` selects and orders them, by `sorting`.
  `shown_statistics` has what a row shows of a tensor's statistics.
- A *table* (`table`) has columns and lines of values. A *line* may show two rows, a value and its gradient
  (`sections`), or all iterations of a loop (`folding`).
- `over_time` makes those of a run.
- `by_block` makes the table of a dump's overview, in a given number of lines.
- `facts` are the lines about the run below the tables, and `numbers` writes numbers as people read them.
"""
