"""Options are groups of command-line options that several commands share.

- `model_options`: the model, its batch and its precision; `checkpoint_options` reads the files of rules for its
  checkpoint. `shared`: single options, and the check that options exclude each other.
- `observation_options`: `--ops`, `--terms`, `--per-example`. `fetch_and_feed_options`: `--feed`, `--fetch`, `--of`,
  `--wrt`, `--cotangent`, `--stop-gradient`.
- `report_options`: the rows that are shown, and their format. `checked_findings`: `--check` and `--strict`, which
  decide whether a command exits 1.
- `judge_options`: the tolerances and pairs of `compare` and `report`. `training_options`: the step of a training run.
- `completion` completes names in a shell.
- `grouping` makes a dataclass of options look to Typer like separate parameters.
"""
