"""Capturing runs an observing program and turns what it observed into the records of a dump.

The modules at the top are the entry points:

- `dump_model` does everything of `gradscope dump` between its options and its table.
- `gradients` computes the gradients of any values with respect to any others.
- `calibration` measures the noise floor of a reference, for `gradscope calibrate`.
- `run_environment` records versions, devices and settings; `timings` records the seconds of each phase.

The sub-packages follow the order in which a dump is made:

- `execution` makes a model's arguments, compiles the observing program and runs it: at once (`preparation`) or in
  segments that stay below `--max-memory` (`segmented`).
- `in_steps` observes inside a user's own training step: the drop-in for `jax.value_and_grad`, and what it returns.
- `records` turns a run into records: `pending_tensors` (without statistics yet), `measure`, `session`. `term_records`
  serves `--terms`, `example_gradients` serves `--per-example`, and `distributed` serves several processes.
- `explain` runs the loss once more to explain a result: `nonfinite` searches for the operation in which a NaN began,
  `zeros` for the reason why a gradient is zero, and `self_check` measures how much observing changed.
- `isolate` runs layers one by one on the values of a reference (`isolate`, for `compare --isolate`), or writes one
  layer as a script of its own (`reproduction`, for `gradscope isolate`).
"""
