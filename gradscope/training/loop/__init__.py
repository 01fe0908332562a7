"""The loop of `gradscope train` takes steps on batches, records them, and handles alarms and checkpoints.

- `train_request` states what a run is to do, and how it ended.
- `training_loop` runs the steps, and decides what happens after each.
- `run_alarms` finds alarms, goes back to before their step, and saves or skips it.
- `step_programs` compiles a step twice: as it is, and observed.
- `step_writer` writes what is known of a step into the history and the event file.
- `step_batches` provides the batch of each step.
- `placement` spreads the examples of a batch over devices.
- `processes` makes several processes take the same steps, of which one writes the run.
- `state_files` saves states and restores them, bit for bit.
- `resuming` opens the folder of a run, new or to be continued, and says what differs.
- `alarm_files` saves the state before a step, its batch, and a dump of it with the origin of a NaN.

Why the loop never waits for a step's numbers (2026-11): reading the loss of each step on the host would leave the
device idle between two steps. A step whose loss or gradient is not finite returns the state that it got, and so do all
steps after it, so that a few of them may be on their way before the loop finds out.

Why the state before an alarm's step is computed again (2026-11): the loop knows of an alarm when the step's state has
been donated to the next ones. A copy of every state would double the memory and cost a pass over it in each step; a
copy every 20 steps costs a twentieth of that, and a step that is taken again by the same program on the same batch has
the same bits.
"""
