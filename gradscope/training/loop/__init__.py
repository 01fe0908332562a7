"""The loop of `gradscope train`: steps on batches, what is recorded of them, and checkpoints.

- `training_loop` runs the steps, and decides what happens after each.
- `step_programs` compiles a step twice: as it is, and observed.
- `step_batches` provides the batch of each step.
- `state_files` saves states and restores them, bit for bit.
- `resuming` opens the folder of a run, new or to be continued, and says what differs.
- `alarm_files` saves the state before a step and its batch, and searches for the origin of a NaN.

Why the loop never waits for a step's numbers (2026-11): reading the loss of each step on the host would leave the
device idle between two steps. A step whose loss or gradient is not finite returns the state that it got, and so do all
steps after it, so that a few of them may be on their way before the loop finds out.
"""
