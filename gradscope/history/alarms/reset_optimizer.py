"""An optimizer's state begins anew at each step where its moments are always those of a first step.

Adam keeps a mean of gradients, `mu`, and of their squares, `nu`. After one step they are (1 - b1) g and (1 - b2) g^2,
so that mean(nu) / rms(mu)^2 is (1 - b2) / (1 - b1)^2 in every parameter, whatever the gradient is. Behind a second step
it depends on both gradients, and is another number in each parameter; of a gradient that stays it is another one, too.

With b1 = b2 = 0 nothing is kept on purpose, and every step is as a first one.

A state that is as it was at the recorded step before says nothing: an optimizer that adds up gradients, or one that is
asked once in several steps, keeps that of its first step until the second. Where updates are made and all of `mu` is
zero, and `nu` with it, it is the one that `init` made, which the step hands on in place of what the update returned. An
RMSProp that is not centered has a `mu` that it does not use.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from gradscope import naming
from gradscope.history.alarms.alarm_rules import RESET, Statistics
from gradscope.history.alarms.streaks import IN_A_ROW, Streak
from gradscope.history.history_rows import Alarm

_MEAN: Final = naming.key_of("slot/mu", "")
_SQUARE: Final = naming.key_of("slot/nu", "")
#: How far the numbers of parameters may be apart that are the same but for rounding.
_SAME: Final = 1e-3
#: The fewest parameters that have to agree.
_FEWEST: Final = 2
#: The condition that no moment has been kept.
_ZEROS: Final = "zeros"


class ResetOptimizer:
    """A `ResetOptimizer` follows the moments that an optimizer keeps, at the recorded steps."""

    def __init__(self) -> None:
        self._first: float | None = None
        self._begun = False
        self._before: dict[str, float] = {}
        self._streak = Streak()

    def alarms(self, stats: Statistics) -> Iterable[Alarm]:
        """Yields the alarm of a recorded step, of step 0.

        Args:
            stats: The statistics of the tensors, by key, in the order of the step.
        """
        found, zeros = _moments(stats), _zeros(stats)
        anew = kept = False
        if len(found) >= _FEWEST:
            if not self._begun:
                self._begun, self._first = True, max(found.values())
            first = self._first or 0.0
            # With nothing kept, mu is the gradient and nu its square, at every step.
            nothing_kept = _is_same(first, 1.0) and _is_gradient(found, stats)
            anew = all(_is_same(each, first) for each in found.values()) and not nothing_kept
            sizes = {key: stats[key]["rms"] or 0.0 for key in found}
            kept, self._before = sizes == self._before, sizes
        holds = {RESET: anew, _ZEROS: len(zeros) >= _FEWEST}
        for condition in self._streak.reached(holds, IN_A_ROW, waiting=(RESET,) if kept else ()):
            keys = list(found) if condition == RESET else zeros
            what = (
                "what a first step makes of the gradient"
                if condition == RESET
                else "zero, though the parameter is updated"
            )
            why = (
                f"is {what}, as in all {len(keys)} parameters, at {IN_A_ROW} recorded steps in a row: the optimizer's "
                "state begins anew at each; make it by init once, before the loop, and hand on what update returns"
            )
            yield Alarm(step=0, rule=RESET, key=keys[0], why=why)

    def to_json(self) -> dict[str, Any]:
        """Returns everything that it remembers."""
        return {"first": self._first, "begun": self._begun, "before": self._before,
                "lengths": self._streak.lengths}  # fmt: skip

    def restore(self, found: dict[str, Any]) -> None:
        """Remembers what `to_json` returned."""
        self._first, self._begun, self._before = found["first"], found["begun"], dict(found.get("before", {}))
        self._streak = Streak(dict(found["lengths"]))


def _is_gradient(means: Iterable[str], stats: Statistics) -> bool:
    """Returns whether the means are the gradients that a step has handed to the optimizer, as b1 = 0 makes them."""
    names = {key: key.removeprefix(_MEAN) for key in means}
    return any(
        all(_is_same(stats[key]["rms"], stats.get(naming.key_of(family, name), {}).get("rms"))
            for key, name in names.items())
        for family in (naming.PARAM_GRAD, naming.CLIPPED_GRAD)
    )  # fmt: skip


def _is_same(one: float | None, other: float | None) -> bool:
    return one is not None and other is not None and abs(one - other) <= _SAME * abs(other)


def _zeros(stats: Statistics) -> list[str]:
    """Returns the keys of the means of gradients, where all moments are zero though all parameters are updated."""
    means = [key for key in stats if key.startswith(_MEAN)]
    updates = [stats.get(naming.key_of(naming.UPDATE, key.removeprefix(_MEAN)), {}).get("l2") for key in means]
    moments = (each for key, each in stats.items() if key.startswith((_MEAN, _SQUARE)))
    return means if all(updates) and all(each.get("rms") == 0 for each in moments) else []


def _moments(stats: Statistics) -> dict[str, float]:
    """Returns the mean of squares over the square of the mean, of each parameter with a gradient, by the mean's key."""
    found: dict[str, float] = {}
    for key, each in stats.items():
        if key.startswith(_MEAN):
            square = stats.get(f"{_SQUARE}{key.removeprefix(_MEAN)}", {}).get("mean")
            if square and (rms := each.get("rms")):
                found[key] = square / rms**2
    return found
