"""Isolation runs single layers of a model on pinned values, or writes one layer as a script of its own.

*Pinned* values and arguments are taken from a dump and put into the run in place of computed ones.

- `isolate` runs all layers of a candidate, each on the values and cotangents that a reference has for it, and compares
  the results (`compare --isolate`). `pinned_arguments` and `pinned_values` collect the reference's values; `boundaries`
  are the values at which the segments between pinned values end. `layer_inputs` compares what layers read between them,
  `segment_precision` in which dtype they compute, `places` whether a layer or the code before it is at fault,
  and `isolated_dump` compares what the layers made.
- `reproducing` writes one layer with its values from a dump as a script (`gradscope isolate`).
"""
