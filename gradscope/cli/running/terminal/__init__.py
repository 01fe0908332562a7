"""A terminal shows how far a command is while it runs; a pipe shows nothing of it.

- `progress` shows the present phase, and `training_progress` the present step.
- `live_view` shows a whole document, again whenever it changes.
"""
