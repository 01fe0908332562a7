"""A trained parameter is stuck where steps leave it as it is, and not on purpose.

What a step leaves as it is the step itself says, where it returns new parameters. Where it does not, as in most loops
of a probe, a parameter stays whose statistics are those of the recorded step before.

A parameter that is updated once in several steps, as that of a generator whose critic moves at each, stays between its
updates: where nothing shows that it cannot move, such as a gradient of zero, it takes longer.

An optimizer that makes an update of exact zeros of a gradient that is not zero, from the first recorded step on and
while other parameters move, was told so (`optax.set_to_zero`, a learning rate of 0 for a group): that is *frozen*, and
no alarm.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import numpy as np

from gradscope import naming
from gradscope.history.alarms.alarm_rules import ZERO_GRADIENT, Statistics
from gradscope.history.alarms.streaks import IN_A_ROW, Streak, others_alike
from gradscope.history.history_rows import Alarm

#: How the keys begin of what an optimizer keeps that updates once in several steps: `MultiSteps` and `apply_every`.
_ACCUMULATED: Final = (naming.key_of("slot/acc_grads", ""), naming.key_of("slot/grad_acc", ""))
_UPDATES: Final = naming.key_of(naming.UPDATE, "")
_SLOTS: Final = f"{naming.SLOT_PREFIX}/"
#: Steps in which all parameters stay, where only their statistics tell or updates are zero, with updates that are
#: recorded and without: a loop that adds up gradients by itself has no other sign of it; or that the optimizer's slots
#: stay as well, which gradients change although the rate is 0.
_ACCUMULATING: Final = (20, 100)
#: Steps in which one parameter stays that may be updated once in several.
_BETWEEN_UPDATES: Final = 20
#: A gradient of so small a share of those beside it is rounding, as that of a bias before a normalisation; and where
#: all together are such a share of the first, the run has converged, and there is nothing left to learn.
_ROUNDING: Final = 1e-5
#: What a layer's name ends with that is called again.
_CALL: Final = re.compile(r"(#\d+|\[\d+\])$")
#: An update of more than this share of its parameter is not lost in the rounding of bfloat16, half an ulp of each
#: element.
_NOT_ROUNDED: Final = 2.0**-8
#: The columns that tell whether a parameter is the one that it was.
_COLUMNS: Final = ("l2", "mean", "std", "amax", "zeros")

#: Why a parameter stays that has a gradient, and what that is where all of them stay.
_NO_UPDATE: Final = "its gradient is not zero, but its update is"
_ROUNDED: Final = ", the norm of its update, is lost in its rounding"
_NOT_APPLIED: Final = ", the norm of its update, is not applied"
_EITHER: Final = ", the norm of its update, is not applied, or lost in its rounding"
_OF_UPDATES: Final = (_ROUNDED, _NOT_APPLIED, _EITHER)
_SCHEDULE_ENDED: Final = (
    ", as of every parameter: the step may drop it, or the learning rate be 0, as behind the end of a schedule"
)


class StuckParameters:
    """`StuckParameters` follow the trained parameters of a run, at the recorded steps.

    Args:
        unreached: Why no gradient reaches a parameter, by name; may be filled later.

    Attributes:
        still: The parameters that the last recorded step left as they were.
        frozen: Those of them of whose gradients the optimizer made no update at any recorded step.
    """

    def __init__(self, unreached: Mapping[str, str]) -> None:
        self._unreached = unreached
        self._streak = Streak()
        self._moved: set[str] = set()
        self._before: dict[str, list[float | int | None]] = {}
        self._since: int | None = None
        self._longest_pause = 0
        self._slots: dict[str, list[float | int | None]] = {}
        self._still_since: dict[str, int] = {}
        self._first_norm = 0.0
        self.still: set[str] = set()
        self.frozen: set[str] = set()

    def alarms(
        self, number: int, stats: Statistics, unchanged: Mapping[str, bool], rate: float | None
    ) -> Iterable[Alarm]:
        """Yields the alarms of a recorded step, of step 0.

        Args:
            number: The step.
            stats: The statistics of the tensors, by key, in the order of the step.
            unchanged: Whether the step left a trained parameter as it was, by name, as far as that is known.
            rate: The learning rate; None where it is not known.
        """
        stated = bool(unchanged)
        before = self._as_before(stats)
        stays = unchanged if stated else before
        self.still = {name for name, each in stays.items() if each}
        # Of a step that leaves a parameter as it is, the one before, which is not recorded, may have changed it.
        self._still_since = {name: self._still_since.get(name, number) if before.get(name, True) else number
                             for name in self.still}  # fmt: skip
        self._moved |= stays.keys() - self.still
        moving = len(self.still) < len(stays)
        self.frozen = {name for name in self.still - self._moved if moving and self._is_frozen(name, stats, rate)}
        rounding = self._too_small(stats)
        accumulated = {naming.split_key(key)[1] for key in stats if key.startswith(_ACCUMULATED)}
        if not moving and accumulated:
            return  # a step that adds its gradient to those of others, whose update is yet to come
        least = _ACCUMULATING[self._is_accumulating(stats)]
        if moving or not all(before.values()):  # perhaps in a step that is not recorded
            self._longest_pause = max(self._longest_pause, 0 if self._since is None else number - self._since)
            self._since = None
        if not moving:
            self._since = number if self._since is None else self._since
            pauses = not stated or (rate != 0 and _has_no_update(stats))
            if pauses and number - self._since < max(least, 2 * self._longest_pause):
                return
        asked = {name: name not in self.frozen and name not in rounding
                 and (not moving or self._cannot_move(name, stats, rate)
                      or number - self._still_since[name] >= _BETWEEN_UPDATES)
                 for name in self.still}  # fmt: skip
        # Of several optimizers, as of a generator and its critic, one may add up gradients while the others move.
        waiting = accumulated if accumulated <= self.still else set[str]()
        reached = self._streak.reached(asked, IN_A_ROW, waiting=waiting)
        causes = {name: self._cause(name, stats, rate, stated=stated) for name in reached}
        yield from self._of(causes, stats, alone=len(stays) > 1 and not moving)

    def to_json(self) -> dict[str, Any]:
        """Returns everything that they remember."""
        return {"moved": sorted(self._moved), "before": self._before, "since": self._since,
                "longest_pause": self._longest_pause, "slots": self._slots,
                "still_since": self._still_since, "first_norm": self._first_norm,
                "lengths": self._streak.lengths}  # fmt: skip

    def restore(self, found: Mapping[str, Any]) -> None:
        """Remembers what `to_json` returned."""
        self._moved, self._before = set(found["moved"]), dict(found["before"])
        self._since, self._streak = found["since"], Streak(dict(found["lengths"]))
        # A state of an older gradscope has none of these.
        self._still_since, self._slots = dict(found.get("still_since", {})), dict(found.get("slots", {}))
        self._longest_pause, self._first_norm = found.get("longest_pause", 0), found.get("first_norm", 0.0)

    def _as_before(self, stats: Statistics) -> dict[str, bool]:
        """Returns whether a trained parameter is as it was at the recorded step before, by name, as far as is known."""
        before = self._before
        now = {
            name: [stats[key].get(column) for column in _COLUMNS]
            for name in self._trained(stats)
            if (key := naming.key_of(naming.PARAM, name)) in stats
        }
        self._before = now
        return {name: each == before[name] for name, each in now.items() if name in before}

    def _is_accumulating(self, stats: Statistics) -> bool:
        """Returns whether a loop may be adding up gradients: no update is recorded, or the optimizer was not asked."""
        before = self._slots
        self._slots = {key: [each.get(column) for column in _COLUMNS] for key, each in stats.items()
                       if key.startswith(_SLOTS)}  # fmt: skip
        return not any(key.startswith(_UPDATES) for key in stats) or (bool(before) and before == self._slots)

    def _too_small(self, stats: Statistics) -> set[str]:
        """Returns the parameters whose gradient is not zero, and too small for its update to be a sign of a fault."""
        gradients = {name: l2 for key, each in stats.items() for family, name in [naming.split_key(key)]
                     if family == naming.PARAM_GRAD and (l2 := each.get("l2"))}  # fmt: skip
        norm = math.hypot(*gradients.values())
        self._first_norm = self._first_norm or norm
        return {*gradients} if norm < _ROUNDING * self._first_norm else _rounding(stats) if self.still else set()

    def _trained(self, stats: Statistics) -> list[str]:
        keys = (naming.split_key(key) for key in stats)
        return list(dict.fromkeys([*(name for family, name in keys if family == naming.PARAM_GRAD), *self._unreached]))

    def _cannot_move(self, name: str, stats: Statistics, rate: float | None) -> bool:
        """Returns whether something shows that no update changes a parameter, whenever one is made."""
        gradient = stats.get(naming.key_of(naming.PARAM_GRAD, name), {})
        return name in self._unreached or gradient.get("l2") == 0 or rate == 0

    def _is_frozen(self, name: str, stats: Statistics, rate: float | None) -> bool:
        """Returns whether the update is zero, or not recorded, though a gradient is there."""
        gradient, update = (stats.get(naming.key_of(family, name), {}) for family in (naming.PARAM_GRAD, naming.UPDATE))
        return rate != 0 and not update.get("l2") and bool(gradient.get("l2"))

    def _of(self, causes: Mapping[str, str], stats: Statistics, *, alone: bool) -> Iterable[Alarm]:
        """Yields an alarm for each cause of those that are stuck from this step on."""
        alike: dict[str, list[str]] = {}
        for name in sorted(causes, key=_places(stats)):
            kind = next((end for end in _OF_UPDATES if causes[name].endswith(end)), causes[name])
            alike.setdefault(kind, []).append(name)
        for names in alike.values():
            # Before the place where it is cut, no parameter gets a gradient: the last is closest to it.
            name = names[-1 if names[0] in self._unreached else 0]
            why = f"did not change at {IN_A_ROW} recorded steps in a row{others_alike(name, names)}"
            if cause := causes[name]:
                why = f"{why}: {cause}{_SCHEDULE_ENDED if alone and cause == _NO_UPDATE else ''}"
            yield Alarm(step=0, rule="stuck", key=naming.key_of(naming.PARAM, name), why=why)

    def _cause(self, name: str, stats: Statistics, rate: float | None, *, stated: bool) -> str:
        """Returns why a parameter does not change, as far as its numbers say; "" where they do not."""
        gradient, update = (stats.get(naming.key_of(family, name), {}) for family in (naming.PARAM_GRAD, naming.UPDATE))
        if name in self._unreached:
            return f"no gradient reaches it ({self._unreached[name]})"
        if gradient.get("l2") == 0:
            return ZERO_GRADIENT
        if rate == 0:
            return "the learning rate is 0"
        if update.get("l2") == 0:
            return _NO_UPDATE
        # Of new parameters that are stated, the update is added; of others that is not known.
        is_zero = stats.get(naming.key_of(naming.PARAM, name), {}).get("amax") == 0  # nothing is lost beside a zero
        is_large = is_zero or (update.get("ratio") or 0.0) > _NOT_ROUNDED
        lost = _ROUNDED if stated else _NOT_APPLIED if is_large else _EITHER
        return f"{update['l2']:.2g}{lost}" if update.get("l2") else ""


def _has_no_update(stats: Statistics) -> bool:
    """Returns whether an optimizer makes updates of zero, of gradients that are not."""
    families = [(naming.split_key(key)[0], each.get("l2")) for key, each in stats.items()]
    updates = [l2 for family, l2 in families if family == naming.UPDATE]
    return bool(updates) and not any(updates) and any(l2 for family, l2 in families if family == naming.PARAM_GRAD)


def _rounding(stats: Statistics) -> set[str]:
    """Returns the parameters whose gradient is not zero but for rounding: an update too small to count is no fault.

    The terms of such a gradient cancel: it is small beside those of the same layer, or beside what comes back to the
    layer. Where gradients vanish over the depth, all of these are small, and the gradient is what it is.
    """
    gradients, returned = dict[str, float](), dict[str, float]()
    for key, each in stats.items():
        (family, name), rms = naming.split_key(key), each.get("rms") or 0.0
        if family == naming.PARAM_GRAD and rms:
            gradients[name] = rms
        elif family == naming.ACTIVATION_GRAD:
            layer = _CALL.sub("", name)
            returned[layer] = max(rms, returned.get(layer, 0.0))
    layers: dict[str, list[float]] = {}
    for name, rms in gradients.items():
        layers.setdefault(name.rpartition("/")[0], []).append(rms)
    middle = float(np.median([*gradients.values()])) if gradients else 0.0

    def beside(name: str) -> float:
        layer = name.rpartition("/")[0]
        if layer and len(layers[layer]) > 1:
            return max(layers[layer])
        return returned.get(name) or returned.get(layer) or middle

    return {name for name, rms in gradients.items() if rms < _ROUNDING * beside(name)}


def _places(stats: Statistics) -> Callable[[str], int]:
    """Returns a function of a parameter's name that returns its place in the step; behind all where it has none."""
    order = {name: at for at, key in enumerate(stats) for family, name in [naming.split_key(key)]
             if family == naming.PARAM}  # fmt: skip
    return lambda name: order.get(name, len(stats))
