"""Content is what a page's scripts show, as JSON and packed numbers.

- `table_content` writes the tables that the terminal has, `tensor_content` all statistics of tensors.
- `block_content` writes the tree of layers with the flow of data between siblings, `graph_content` what each tensor is
  computed from, `depth_content` lines along depth.
- `run_content` writes a run: its curves, statistics, histograms, alarms, and the noise of gradients. `packed_series`
  packs statistics over steps in three bytes each.
- `streamed_json` writes all of it, piece by piece.
- `json_values` has what they share: keys by number, numbers of six digits, texts of bounded length.

`script/types.d.ts` states the same for the scripts.
"""
