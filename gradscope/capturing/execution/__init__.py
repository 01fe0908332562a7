"""Execution makes a model's arguments, compiles its observing program, and runs it at once or in segments.

- `function_call` brings a call of any function into the form of a loss of variables and batch.
- `arguments` describes the arguments of a loss by their shapes, and makes them when they are needed.
- `preparation` compiles the observing program while the arguments are being made.
- `unsegmented` runs the loss at once; `segmented` in segments that stay below `--max-memory`, whose equal programs are
  `shared_programs`; `disk_spill` stores arrays between them.
- `run` holds the inputs and outputs of one run; `observation` copies observed arrays to the host, under
  `jax.distributed` only the shards of this process.
- `order` ranks values and layers by execution order; `plain_loss` is the user's loss without any tap.
"""
