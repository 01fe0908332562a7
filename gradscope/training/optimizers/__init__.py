"""Optimizers, schedules and ways to clip are found by name.

- `optimizers_by_name` finds those of optax, and those that optax lacks.
- `tensorflow1` defines the optimizers that TensorFlow 1 has and optax lacks.
- `stated_learning_rate` reads the learning rate in an optimizer's state.
- `updating` calls an optimizer's `update` with the arguments that it takes beside the gradients.
- `clip` has the ways to clip gradients, as TensorFlow 1 has them.
- `literal_expressions` parses `adam(exponential_decay(0.1, 1000, 0.96))`; nothing in an expression is ever evaluated.
"""
