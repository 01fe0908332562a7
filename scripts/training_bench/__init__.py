"""Measures what it costs to watch a training loop, by gradscope's probe and by what others offer.

A contender is a loop of its own with a state of its own. It is built beside the plain loop alone, since the states of
all loops of a large model would not fit into memory together, and the two take turns: of ten steps where every tenth is
watched, else of two. A figure is the time of all turns of the one over that of the other, so that what a loop does once
in many turns counts, and a machine whose speed drifts does not.

- `subjects` has the models, in JAX and in PyTorch.
- `contender` says what a loop is that is measured.
- `loops_of_jax` and `loops_of_torch` make the contenders.
- `measuring` takes the turns, and `page` writes what came out.
"""
