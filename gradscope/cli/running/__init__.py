"""Running prepares a model's run for a command, or what needs no command.

- `version` prints the version.
- `supervisor` runs the command in a child process, so that its exit status is right however it ends.
- `starting_jax` imports JAX, and keeps what it compiled.
- `mesh_processes` run one model on several numbers of devices, each in a process of its own.
- `rerun` makes the model of a saved dump again, for `compare --isolate` and `isolate`.
- `compared_paths` finds out which dumps, or runs, are compared with which, for `compare` and `report`.
- `default_output` finds out whether `dump` may replace what is at its default output.
- `blas` keeps NumPy's matrix library to one thread in commands that only read dumps.
- `interpreter_parts` puts back what a model took away of Python, and takes its signals from it.
- `bug_report` has what to send about an error that nothing explains.
- `terminal` shows how far a command is.
"""
