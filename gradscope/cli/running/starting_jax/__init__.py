"""Starting JAX imports it for a command that runs a model, and takes part in its processes and its cache.

- `program_notes` remember which compiled programs a command needed when it ran last.
- `kept_programs` makes JAX keep compiled programs, and load early those of the notes.
- `joining` makes it one of the processes of a distributed run.
- `jax_setup` imports JAX and sets its precision.
"""
