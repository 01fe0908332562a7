"""Reading tells which steps are right by what the layer of the divergence reads.

- `readers`: what the layer of one program reads, where only the other has an entry for that.
- `read_steps`: the steps of either program that are right or wrong by what the layer behind them reads.
- `recovered_values`: what a layer reads, where no tensor has that.
- `unrecorded_reads`: what a layer reads in both programs, where neither has an entry for that.
- `shown_reads`: which of several values that is, as the gradient of its kernel shows.
- `kinds`: what that may be of one kind, as a sequence of tokens or the rows of a table.
- `attentions`: which attention of the values before it a layer reads in both programs.
- `replaced_reads`: which step has another operation in its place, by what a layer reads.
- `other_sources`: which other value a layer reads in the candidate, where both have an entry for it.
"""
