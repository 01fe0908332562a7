"""Frameworks adapt modules of foreign libraries to the three functions that gradscope calls a model.

Vocabulary:

- A *module* is a framework's network: a Flax Linen or NNX module, an Equinox module, a Haiku function, a Keras model.
- An *adapter* handles one framework: which variables a module has, how it is called, how its layers are named.

The parts, in the order in which a module becomes a model:

- `detect` finds the adapter of an object. An adapter is used only where the user's code has imported its library.
- `flax` (`linen`, `nnx`, `transformers`), `equinox`, `haiku` and `keras` are the adapters.
- `modules` is shared by all adapters: inputs (`--input`), calls, losses, and the model itself.
- `functions_of_modules` handles a file's own functions whose `init` returns a module.
- `extras` names the optional dependency to install for a missing package.
- `torch` writes a dump of a PyTorch module by itself, without JAX. It is above the writer and the statistics; nothing
  in the package imports it.

An adapter does not change the numbers. Linen, Haiku and Keras open scopes themselves. NNX and Equinox do not, so their
adapters open them around each module's call, by the attribute path under which a user knows it. They do it to a copy,
for as long as the trace lasts.

Why modules become functions (2026-11): all packages above this one see one kind of model. A framework's module differs
from a file of functions only in who wrote `init`, `batch` and `loss`.
"""
