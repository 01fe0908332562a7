"""A step returns the next state of what it is given, as of an optimizer, and the loop has to hand it on.

A pytree among the arguments has its next state among what is returned where that has one of the same structure, shapes
and dtypes for each that is given: parameters that are given twice, as those of a target network, and returned once have
none. What a loss is given is left out: parameters and running averages have conclusions of their own, and a batch is
often the same at each step.

What has the structure of another pytree need not be its next state. Sure are keys, optax' own states, which count their
steps where they accumulate, and means of the parameters, which move little in a step: the gradients of a step are like
the weights of a teacher in all but their values, and a loss and its accuracy are a pair of numbers as two limits are.
Other states may begin anew on purpose, as those of an environment.

A step may also return the state of its optimizer as it is given, which no update of optax does. The state that it
records says which optimizer it takes a step of: a step of one of two networks returns the state of the other as it is.
One that adds up gradients returns the parameters as they are, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp

from gradscope.history.history_rows import LossFault
from gradscope.training.probing.returned.alike import alike, children, is_array, outline_of
from gradscope.training.recording.compared_arrays import is_same
from gradscope.training.recording.expected_changes import ExpectedChange, numbers_of_key
from gradscope.training.recording.loss_faults import same_state, same_state_returned

#: How many leaves of a state are compared, the smallest ones, and the most elements of each.
_LEAVES: Final = 8
_ELEMENTS: Final = 1 << 16
#: The most that a mean of parameters moves in a step, of its own norm.
_NEAR: Final = 0.5


class _Given(NamedTuple):
    """A `_Given` is a pytree among the arguments of a step, as `opt_state` or `state.opt_state`."""

    name: str
    tree: Any


def states_to_hand_on(
    arguments: Mapping[str, Any], of_losses: Collection[int], returned: Any, recorded: Any = None
) -> Iterator[tuple[LossFault, ExpectedChange]]:
    """Yields the states that should be others at the next step, and what is to be said where they are not.

    Args:
        arguments: The arguments of a step by name, before it ran.
        of_losses: The `id` of each array that a loss of the step was given.
        returned: What the step returned.
        recorded: The state of an optimizer that the step recorded; None where it recorded none.
    """
    is_update = _makes_update(arguments, of_losses, returned)
    for name, tree in arguments.items():
        for state in _states(_Given(name, tree), of_losses):
            outline, leaves = outline_of(state.tree), _leaves(state.tree)
            given, next_ones = list(alike(outline, tuple(arguments.values()))), list(alike(outline, returned))
            if not leaves or len(next_ones) != len(given):
                continue
            is_recorded = is_update and next(alike(outline, recorded), None) is not None
            if is_recorded and _is_of_optax(state.tree) and _are_given(next_ones, given):
                yield same_state_returned(state.name), ExpectedChange(tuple(leaves), jnp.bool_(True))
                continue
            is_due = _moves(leaves, next_ones)
            if not (_is_of_optax(state.tree) or _is_key(state.tree)):
                if not any(id(leaf) in of_losses for each in given for leaf in jax.tree_util.tree_leaves(each)):
                    continue
                is_due &= _count_near(leaves, next_ones) >= _count_near(leaves, given)
            yield same_state(state.name), ExpectedChange(tuple(leaves), is_due)


def _makes_update(arguments: Mapping[str, Any], of_losses: Collection[int], returned: Any) -> bool:
    """Returns whether a step replaces what its loss is given, as parameters; one that adds up gradients does not."""
    new = jax.tree_util.tree_leaves(returned)
    as_given = {id(leaf) for leaf in new}
    replaced = {
        (leaf.shape, leaf.dtype) for leaf in jax.tree_util.tree_leaves(dict(arguments))
        if is_array(leaf) and jnp.issubdtype(leaf.dtype, jnp.inexact)
        and id(leaf) in of_losses and id(leaf) not in as_given
    }  # fmt: skip
    return any(is_array(leaf) and (leaf.shape, leaf.dtype) in replaced for leaf in new)


def _are_given(next_ones: Sequence[Any], given: Sequence[Any]) -> bool:
    """Returns whether the next states are those that were given, and not only equal to them."""
    news, olds = (jax.tree_util.tree_leaves(each) for each in (next_ones, given))
    return all(new is old for new, old in zip(news, olds, strict=True))


def _moves(state: Sequence[Any], next_ones: Sequence[Any]) -> Any:
    """Returns whether none of the next states is as it was."""
    pairs = [list(zip(_leaves(each), state, strict=True)) for each in next_ones]
    return jnp.stack([~jnp.stack([is_same(*pair) for pair in each]).all() for each in pairs]).all()


def _count_near(state: Sequence[Any], trees: Sequence[Any]) -> Any:
    """Returns how many pytrees are as near to a state as a mean is to the next one; of zeros, only zeros are."""
    size = _power(state)
    apart = (_power([one - other for one, other in zip(_leaves(each), state, strict=True)]) for each in trees)
    return jnp.stack([each <= _NEAR**2 * size for each in apart]).sum()


def _power(arrays: Sequence[Any]) -> Any:
    return jnp.stack([jnp.square(jnp.abs(each.astype(jnp.promote_types(each.dtype, jnp.float32)))).sum()
                      for each in arrays]).sum()  # fmt: skip


def _states(given: _Given, of_losses: Collection[int]) -> Iterator[_Given]:
    """Yields the largest pytrees of a pytree of which a loss was given nothing."""
    leaves = jax.tree_util.tree_leaves(given.tree)
    if not all(is_array(leaf) for leaf in leaves) or any(id(leaf) in of_losses for leaf in leaves):
        for place, inside in children(given.tree):
            yield from _states(_Given(given.name + place, inside), of_losses)
    elif len(leaves) > 1 or (leaves and _is_key(leaves[0])):
        yield given


def _leaves(tree: Any) -> list[Any]:
    """Returns the smallest leaves of a pytree."""
    leaves = [numbers_of_key(leaf) for leaf in jax.tree_util.tree_leaves(tree)]
    return sorted((leaf for leaf in leaves if leaf.size <= _ELEMENTS), key=lambda leaf: leaf.size)[:_LEAVES]


def _is_of_optax(tree: Any) -> bool:
    own = type(tree).__module__.partition(".")[0] == "optax"
    return own or any(_is_of_optax(inside) for _, inside in children(tree))


def _is_key(tree: Any) -> bool:
    if not is_array(tree):
        return False
    is_raw = tree.shape == (2,) and tree.dtype == jnp.uint32
    return is_raw or bool(jnp.issubdtype(tree.dtype, jax.dtypes.prng_key))
