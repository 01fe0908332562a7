"""Running a model for a command: the settings of JAX, the model of a saved dump made again, progress."""
