"""Some values have to be others at each step: the key of a dropout or of noise, and running averages of a loss.

Which those are, the program of the loss states; whether they are others, the recorded steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp

from gradscope.history.history_rows import LossFault
from gradscope.tracing.lookup.functions.drawn.repeated_draws import DrawnFor, drawn
from gradscope.tracing.lookup.functions.running_averages import running_averages
from gradscope.tracing.tracer import Trace
from gradscope.training.recording.compared_arrays import is_same
from gradscope.training.recording.loss_faults import same_averages, same_key

#: The comparisons of one recorded step with the next that say so.
_FEWEST: Final = 2


class ExpectedChange(NamedTuple):
    """An `ExpectedChange` has values that should be others at the next step.

    Attributes:
        values: The values.
        is_due: Whether there is anything new to hand on, a 0-d bool.
    """

    values: tuple[Any, ...]
    is_due: Any


def expected_changes(
    trace: Trace, inputs: Sequence[Any], auxiliary: Sequence[Any]
) -> Iterator[tuple[LossFault, ExpectedChange]]:
    """Yields what should change from one step to the next, and what is to be said where it does not.

    Args:
        trace: The trace of a loss.
        inputs: The values of its arguments and constants.
        auxiliary: Its auxiliary outputs.
    """
    places: dict[tuple[DrawnFor, tuple[int, ...]], dict[str | None, None]] = {}
    for each in drawn(trace):
        if each.inputs and each.is_drawn_by_keys:
            places.setdefault((each.what, each.inputs), {})[each.source] = None
    for (what, numbers), those in places.items():
        keys = tuple(numbers_of_key(inputs[at]) for at in numbers)
        yield same_key(what, list(those)), ExpectedChange(keys, jnp.bool_(True))
    averages = list(running_averages(trace))
    if averages:
        names = [trace.arguments[each.input].name for each in averages if each.input < len(trace.arguments)]
        moves = [~is_same(auxiliary[each.output], inputs[each.input]) for each in averages]
        given = tuple(inputs[each.input] for each in averages)
        yield same_averages(names, len(averages)), ExpectedChange(given, jnp.stack(moves).any())


def joined(one: ExpectedChange, other: ExpectedChange) -> ExpectedChange:
    """Returns two changes of one step that one sentence is about, as of two calls of the loss."""
    return ExpectedChange((*one.values, *other.values), one.is_due | other.is_due)


class ChangesMissing:
    """`ChangesMissing` finds what has not changed at any recorded step though it should have.

    Attributes:
        faults: What is to be said of it.
    """

    def __init__(self) -> None:
        self._before: Mapping[str, ExpectedChange] = {}
        self._stays: dict[str, int] = {}
        self.faults: frozenset[str] = frozenset()

    def after(self, changes: Mapping[str, ExpectedChange]) -> Callable[[], None]:
        """Returns the function that learns from a recorded step, and may wait for the device.

        Args:
            changes: What should change from this step to the next, by its sentence.
        """
        before, self._before = self._before, changes
        known = {why: (each, before[why]) for why, each in changes.items() if why in before}
        known = {why: pair for why, pair in known.items() if _outline(pair[0]) == _outline(pair[1])}
        same = _are_same(known) if known else {}
        due = {why: change.is_due for why, (_, change) in known.items()}

        def learn() -> None:
            for why, stays in same.items():
                if not stays or self._stays.get(why) == -1:
                    self._stays[why] = -1  # what has changed once is told no more
                elif due[why]:
                    self._stays[why] = self._stays.get(why, 0) + 1
            self.faults = frozenset(why for why, number in self._stays.items() if number >= _FEWEST)

        return learn


@jax.jit
def _are_same(pairs: Mapping[str, tuple[ExpectedChange, ExpectedChange]]) -> dict[str, Any]:
    return {why: _is_same(*pair) for why, pair in pairs.items()}


def _is_same(now: ExpectedChange, before: ExpectedChange) -> Any:
    return jnp.stack([is_same(new, old) for new, old in zip(now.values, before.values, strict=True)]).all()


def _outline(change: ExpectedChange) -> list[Any]:
    """Returns the shapes and dtypes of values, which are others where a batch has another size."""
    return [(each.shape, each.dtype) for each in change.values]


def numbers_of_key(key: Any) -> Any:
    """Returns the integers of a key; another array as it is."""
    return jax.random.key_data(key) if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else key
