"""The commands about training runs alone, one module for each; `recording_options` are those of `train` that state
what is recorded and what alarms do.
"""
