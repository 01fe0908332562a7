"""The user's own step is observed inside, where JAX traces it.

- `signature` states how a function is differentiated, and has modules keep the state that it changes.
- `value_and_grad` is the drop-in for `jax.value_and_grad`.
- `seen` is what it returns beside the value and the gradients, of which a dump is made where that is saved.
- `compiling_note` says on a terminal that a step is compiled, where that takes long.
"""
