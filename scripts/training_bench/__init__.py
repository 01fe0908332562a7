"""Measures what it costs to watch a training loop, by gradscope's probe and by what others offer.

A contender is a loop of its own with a state of its own. It is built beside the plain loop alone, since the states of
all loops of a large model would not fit into memory together, and the two take a step in turn: ten in a round where
every tenth is watched, else two. A figure is the median of the rounds' ratios, so that neither a machine whose speed
drifts counts nor one that is busy for a while.

- `subjects` has the models, in JAX and in PyTorch.
- `contender` says what a loop is that is measured.
- `loops_of_jax` and `loops_of_torch` make the contenders.
- `measuring` takes the rounds, and `page` writes what came out.
"""
