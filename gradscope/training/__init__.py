"""Training takes steps of an optimizer, each a pure function whose every stage is observed.

- `step` defines `train_step`: the gradients are computed, processed and applied, and each stage is observed.
- `state` defines `TrainState`, what a step turns into its successor, and names the optimizer's variables.
- `processing` turns gradients into those that the optimizer gets: multiplied, clipped, of the trained parameters.
- `optimizers` finds optimizers, schedules and ways to clip by name, and defines those that optax lacks.
- `averages` keeps exponential moving averages of parameters.
- `gradient_noise` estimates the noise of gradients from those of examples, or of groups of them.
- `carrying` hands collections that the loss updates, and random keys, on to the next step.
- `step_seen` defines `StepSeen`, the observations of one step.
- `recording` turns what a step observed into rows of a run's history.
- `loop` is the loop of `gradscope train`: it runs steps, records them, saves states, and resumes.
- `probing` records the steps of a loop that the user wrote.

Vocabulary: a *stage* is one of the values that a step computes for each parameter: its gradient, the gradient as handed
to the optimizer (*clipped*), the *update* that is added to the parameter. A *slot* is a variable that the optimizer
keeps for each parameter (`mu`, `nu`, `trace`), a word of TensorFlow's.

Optimizers are optax's, an optional dependency (the extra `train`); only what it lacks is defined here. Without optax,
importing this package is a `UsageError` that says how to install it.
"""

from importlib.util import find_spec

from gradscope.errors import UsageError
from gradscope.frameworks.extras import install_hint

if find_spec("optax") is None:
    raise UsageError("training needs the package optax", hint=install_hint("optax"))
