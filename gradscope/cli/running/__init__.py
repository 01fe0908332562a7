"""Running prepares a model's run for a command, or what needs no command.

- `version` prints the version.
- `supervisor` runs the command in a child process, so that its exit status is right however it ends.
- `jax_setup` imports JAX and sets its precision.
- `kept_programs` makes JAX keep compiled programs, and load early those that `program_notes` remember of the last run.
- `joining` makes it one of the processes of a distributed run.
- `rerun` makes the model of a saved dump again, for `compare --isolate` and `isolate`.
- `compared_paths` finds out which dumps, or runs, are compared with which, for `compare` and `report`.
- `default_output` finds out whether `dump` may replace what is at its default output.
- `blas` keeps NumPy's matrix library to one thread in commands that only read dumps.
- `terminal` shows how far a command is.
"""
