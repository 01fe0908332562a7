"""The command line has one module for each command, which reads options, calls the work, and prints the result.

A run of the program goes through these modules, in this order:

- `main` starts the process: it opens the standard streams (`standard_streams`), installs the handlers of `interrupts`,
  which end the process on a signal, and enters `error_boundary`, the one place that turns errors into exit statuses.
  `leaving` ends the process.
- `program` builds the commands for Typer.
- `commands` has the commands themselves: `dump`, `show`, `compare`, `isolate`, `calibrate`, `inspect`, `check`,
  `verify`, `recover`, `explain`.
- `options` has the groups of options that commands share: the model and its batch (`model_options`), `--feed`,
  `--fetch` and `--of` (`fetch_and_feed_options`), `--ops`, `--terms` and `--per-example` (`observation_options`).
- `running` sets up JAX (`jax_setup`), makes the model of a dump again (`rerun`) and shows `progress`.
- `printing` writes results to standard output; nothing else does.
  `source_files` finds the files of annotations.
"""
