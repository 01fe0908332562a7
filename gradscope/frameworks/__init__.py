"""Frameworks: foreign libraries' modules as the three functions that gradscope calls a model, one file per library.

Vocabulary:

- A *module* is a framework's network: a Flax Linen or NNX module, an Equinox module, a Haiku function, a Keras model.
- An *adapter* knows one framework's ways: which variables a module has, how it is called, how its layers are named.
- A *spec* describes an input that nobody has yet: `tokens=int32[8,128]:0..30522`.
- An *own format* is a kind of checkpoint that only a framework and a module of the user's together make sense of.
- A *request* is what the user says about a module that a file of plain functions would say itself: its inputs, its
  loss, whether it trains.

An adapter puts nothing into the numbers. Linen, Haiku and Keras open scopes themselves; NNX and Equinox do not, so
their adapters open them around each module's call, by the attribute path a user knows it by. They do it to a copy, for
as long as the trace lasts.

No framework is imported before the user's own code has: an adapter is asked only where its library is loaded already.

Why modules become functions (2026-11): everything behind this room sees one kind of model. A framework's module differs
from a file of functions only in who wrote `init`, `batch` and `loss`.

`torch` stands apart: it writes a dump by itself, without JAX, and so is above what writes and measures; nothing in the
package imports it.
"""
