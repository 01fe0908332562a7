"""Probing records the steps of a loop that the user wrote.

- `probe` defines `Probe`, which stands in for `jax.value_and_grad` and `jax.jit`.
- `probed_step` compiles a step twice: as it is, and with what it observes as extra outputs.
- `same_loss` says which functions are one loss of a step.
- `collected` defines what a step collects: extra outputs of it.
- `collecting` collects it while JAX traces the step.
- `returned` holds what a step returns against what it was given, and against what it recorded.
- `probe_history` opens the run's folder, and writes what was observed of each step.
- `step_replay` takes steps of late again, to have the arguments of one.
- `probe_alarms` finds alarms, and saves their steps.
- `alarm_capture` saves a step: its state, its batch, and a dump of its loss; and gives its arguments back.
- `observed_outside` makes records of observations that the user's program returned.

Why two programs (2026-11): a program that decides by itself whether it observes has to be another one than the user's,
and its branches keep what only one of them needs. So the program of a step that is not due is the one of `jax.jit` and
`jax.value_and_grad`, letter by letter, and the choice is Python's.

Why several calls of `value_and_grad` in a step count as one (2026-11): people accumulate gradients. The statistics of
activations add up over the calls as over one large batch; those of a parameter's gradient are of the mean of the
gradients, as those of the loss are of the mean loss.
"""
