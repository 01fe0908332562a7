"""Recording: from what a step observed on the device to the rows of a run's history.

- `recorded` defines what is recorded of one step, on the device.
- `step_rows` turns it into rows of the history.
"""
