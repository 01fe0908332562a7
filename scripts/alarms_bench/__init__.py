"""The bench of alarms: runs of 2,000 steps in which nothing happens, and the same with one step whose gradient jumps.

A sound run has to raise no alarm. In the others, one step that is drawn adds to the gradient of one parameter a vector
that is far longer than the gradients are, and leaves the loss as it is; the run has to raise alarms at this step alone,
with this parameter. Each run is one of `gradscope train --on-alarm skip`, so that nothing follows from the step.

- `watched` has the models and their data.
- `runs` trains them, and counts.
"""
