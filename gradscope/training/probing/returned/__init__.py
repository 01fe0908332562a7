"""These modules hold what a step returns against what it was given, and against what it recorded.

- `handed_on` finds the states that a step returns anew, which the loop has to hand on.
- `applied_updates` finds parameters that do not move by the updates that the step recorded.
- `alike` finds a pytree of one structure in another one.
"""
