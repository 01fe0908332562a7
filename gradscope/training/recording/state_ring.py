"""The state ring copies past states, from which the state before any step of late can be had again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax


class StateRing:
    """A `StateRing` keeps copies of the state on the device, and the batches since.

    A step may be found to be wrong when its state has long been donated to the next ones. The state before it is then
    computed again from the last copy, by the same programs on the same batches, so that it is the same bit for bit.
    Memory: two copies of the state, and the batches of up to `every` steps more than are yet to be judged.

    Args:
        every: Steps between two copies.
    """

    def __init__(self, every: int) -> None:
        self._every = every
        self._copies: dict[int, Any] = {}
        self._batches: dict[int, Any] = {}

    @property
    def full(self) -> bool:
        """Whether there are as many copies as there may be."""
        return len(self._copies) > 1

    def has_copy(self, number: int) -> bool:
        """Returns whether the state before a step was copied."""
        return number in self._copies

    def reaches(self, number: int) -> bool:
        """Returns whether the state before a step can be computed from a copy."""
        return any(at <= number for at in self._copies)

    def is_due(self, number: int) -> bool:
        """Returns whether the state before a step is to be copied."""
        return not self._copies or number - max(self._copies) >= self._every

    def keep(self, number: int, state: Any, batch: Any) -> None:
        """Keeps what a step is going to be taken with, before it is.

        Args:
            number: The step.
            state: The state before; copied where that is due.
            batch: Its batch, which nothing may donate.
        """
        if self.is_due(number):
            self._copies[number] = copied(state)
        self._batches[number] = batch

    def judged(self, number: int) -> None:
        """Lets go of what is needed for steps before this one only: they were found to be right."""
        before = [at for at in self._copies if at <= number]
        for at in before[:-1]:
            del self._copies[at]
        oldest = min(self._copies, default=number)
        self._batches = {at: batch for at, batch in self._batches.items() if at >= oldest}

    def clear(self) -> None:
        """Lets go of everything."""
        self._copies.clear()
        self._batches.clear()

    def batch(self, number: int) -> Any:
        """Returns the batch of a step that is kept."""
        return self._batches[number]

    def state_before(self, number: int, advance: Callable[[int, Any, Any], Any]) -> Any:
        """Returns the state before a step.

        Args:
            number: The step, which has not been judged yet.
            advance: Returns the state after a step, from its number, the state before, which it may donate, and the
                batch.
        """
        state: Any = None
        for _, state in self.states_until(number, advance, begin=number):  # noqa: B007 - the last one is meant
            pass
        return state

    def states_until(
        self, number: int, advance: Callable[[int, Any, Any], Any], *, begin: int
    ) -> Iterator[tuple[int, Any]]:
        """Yields steps and the states before them, in their order, up to that before a step.

        Args:
            number: The last step.
            advance: As for `state_before`; a state that was yielded is donated when the next one is requested.
            begin: The last copy up to this step is the first state.
        """
        at = max(each for each in self._copies if each <= begin)
        state = copied(self._copies[at])
        yield at, state
        for each in range(at, number):
            state = advance(each, state, self._batches[each])
            yield each + 1, state


def copied(tree: Any) -> Any:
    """Returns a pytree in arrays of its own; leaves that are no arrays are passed on."""
    return jax.tree_util.tree_map(lambda leaf: leaf.copy() if isinstance(leaf, jax.Array) else leaf, tree)
