"""Takes steps of late again, to have the arguments of a step whose arrays were donated to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from gradscope.training.recording.state_ring import StateRing, copied

#: A step's arguments and keyword arguments.
Arguments = tuple[Sequence[Any], Mapping[str, Any]]


class StepReplay:
    """A `StepReplay` keeps what the arguments of the steps of late are made of.

    What the loop hands from one step to the next, its *state*, is found by looking: the arguments of the second call
    that are outputs of the first. Copies are kept of it; all other arguments are kept as they are, and copied where the
    step donates them.

    Args:
        every: Steps between two copies.
        take: Takes a step: returns its output, from its number and its arguments, which it may donate.
    """

    def __init__(self, every: int, take: Callable[[int, Arguments], Any]) -> None:
        self._take = take
        self._ring = StateRing(every)
        self._outputs: list[Any] | None = None
        self._from_output: dict[int, int] | None = None
        self._donated: frozenset[int] = frozenset()
        self._tree: Any = None

    @property
    def state(self) -> frozenset[int]:
        """The numbers of the leaves of the arguments that are state."""
        return frozenset(self._from_output or ())

    @property
    def crowded(self) -> bool:
        """Whether the next copy needs that steps are judged first."""
        return self._ring.full

    def is_due(self, number: int) -> bool:
        """Returns whether the state before a step is to be copied."""
        return self._ring.is_due(number)

    def before(self, number: int, arguments: Arguments) -> None:
        """Keeps what a step is going to be taken with."""
        leaves, self._tree = jax.tree_util.tree_flatten(arguments)
        if self._outputs is not None:  # the second call
            places = {id(leaf): at for at, leaf in enumerate(self._outputs) if isinstance(leaf, jax.Array)}
            self._from_output = {at: places[id(leaf)] for at, leaf in enumerate(leaves) if id(leaf) in places}
            self._outputs = None
        known = self._from_output
        state = {at: leaf for at, leaf in enumerate(leaves) if known is None or at in known}
        # Until the second call it is not known what is state, nor before the first what is donated.
        rest = {at: copied(leaf) if at in self._donated else leaf for at, leaf in enumerate(leaves) if at not in state}
        self._ring.keep(number, state, rest)

    def after(self, arguments: Arguments, out: Any) -> None:
        """Looks at what the first call donated and returned."""
        if self._from_output is not None:
            return
        leaves = jax.tree_util.tree_leaves(arguments)
        self._donated = frozenset(at for at, leaf in enumerate(leaves) if _is_deleted(leaf))
        self._outputs = jax.tree_util.tree_leaves(out)

    def judged(self, number: int) -> None:
        """Lets go of what only steps before this one needed."""
        self._ring.judged(number)

    def arguments_of(self, number: int) -> Arguments | None:
        """Returns the arguments of a step, in arrays of their own; None where the loop made them of something else."""
        if not self._from_output and not self._ring.has_copy(number):
            return None
        state = self._ring.state_before(number, self._advanced)
        return self._joined(state, self._ring.batch(number))

    def began(self, number: int) -> int:
        """Returns the step that made the state before a step not finite, as far back as states are kept.

        Returns:
            The last step before whose state fewer leaves were not finite; the step itself where there is none.
        """
        if not self._from_output or not self._ring.reaches(number - 1):
            return number
        states = self._ring.states_until(number, self._advanced, begin=number - 1)
        broken = {at: _broken(state) for at, state in states}
        return max((at for at, leaves in broken.items() if leaves < broken[number]), default=number)

    def _advanced(self, number: int, state: dict[int, Any], rest: dict[int, Any]) -> dict[int, Any]:
        out = jax.tree_util.tree_leaves(self._take(number, self._joined(state, rest)))
        return {at: out[place] for at, place in (self._from_output or {}).items()}

    def _joined(self, state: dict[int, Any], rest: dict[int, Any]) -> Arguments:
        leaves = {**{at: copied(leaf) if at in self._donated else leaf for at, leaf in rest.items()}, **state}
        return jax.tree_util.tree_unflatten(self._tree, [leaves[at] for at in sorted(leaves)])


def _broken(state: dict[int, Any]) -> frozenset[int]:
    """Returns the numbers of the leaves that have a NaN or an infinity."""
    floating = {at: leaf for at, leaf in state.items() if _is_floating(leaf)}
    finite = _all_finite(floating)
    return frozenset(at for at in floating if not finite[at])


def _is_floating(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jnp.inexact)


@jax.jit
def _all_finite(leaves: dict[int, Any]) -> dict[int, Any]:
    return {at: jnp.isfinite(leaf).all() for at, leaf in leaves.items()}


def _is_deleted(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and leaf.is_deleted()
