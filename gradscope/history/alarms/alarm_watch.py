"""Watches a run step by step, and raises alarms."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from gradscope import naming
from gradscope.history.alarms.alarm_rules import (
    BY_NAME,
    NONFINITE,
    RULES,
    ZERO_GRADIENT,
    Statistics,
    forward_most,
)
from gradscope.history.alarms.diverging_loss import Divergence
from gradscope.history.alarms.spike_limits import SPIKE_WINDOW, spike_limits
from gradscope.history.alarms.tensor_rules import TensorRules
from gradscope.history.alarms.unbounded_loss import Descent
from gradscope.history.alarms.update_direction import update_direction
from gradscope.history.history_rows import Alarm
from gradscope.naming.wording import brief

#: Recorded values of a tensor with which the next one is compared, and the least spread of their decimal logarithms.
_COMPARED: Final = 16
_LEAST_DECADES: Final = 0.05

#: Steps in which a step may leave out its updates by itself: a dynamic loss scale is halved at each until it fits.
_LEFT_OUT: Final = 32

_OF_PARAMETERS: Final = (naming.PARAM, naming.PARAM_GRAD)

#: The norm of gradients from which on a learning rate above one, or a square, may be what goes beyond float32.
_OVERFLOWING: Final = 1e16

_TITLES: Final = {"loss": "loss", "grad_norm": "norm of the gradients", "update_norm": "norm of the updates"}


class AlarmWatch:
    """An `AlarmWatch` applies the rules to a run, one step after the other.

    Args:
        sizes: The number of elements of each tensor, by key; may be filled later.
        unreached: Why no gradient reaches a parameter, by name; may be filled later.
        affine: The names of the parameters in which the loss is affine, as in a dual variable; may be filled later.
        returned: The keys of the gradients that return to the layers that read a parameter, by its name; may be filled
            later.
    """

    def __init__(
        self,
        sizes: Mapping[str, int],
        unreached: Mapping[str, str] = MappingProxyType({}),
        affine: Collection[str] = (),
        returned: Mapping[str, Collection[str]] = MappingProxyType({}),
    ) -> None:
        self._windows = {rule.name: deque[float](maxlen=SPIKE_WINDOW) for rule in RULES if rule.watches is not None}
        self._above: set[str] = set()
        self._is_solved = False
        self._left_out_since: int | None = None
        self._logarithms: dict[str, deque[float]] = {}
        self._tensors = TensorRules(sizes, unreached, affine, returned)
        self._divergence = Divergence()
        self._descent = Descent()

    def step(self, number: int, numbers: Mapping[str, float]) -> list[Alarm]:
        """Returns the alarms about the numbers of a step, without a tensor.

        Args:
            number: The step.
            numbers: Its numbers by the columns of `steps`, as far as they are known; in the order of the steps.
        """
        # Of a hinge whose margins are all kept, no unit is dead for having no gradient, and no parameter is stuck.
        self._is_solved = numbers.get("loss") == 0 and numbers.get("grad_norm") == 0
        if self._leaves_out(number, numbers):
            return []
        found = self.diverging(number, numbers)
        unbounded = self._descent.step(number, numbers)
        found += [] if unbounded is None else [unbounded]
        for rule in RULES:
            value = numbers.get(rule.watches or "")
            if value is None:
                continue
            if not math.isfinite(value):
                if NONFINITE not in self._above:
                    found.append(Alarm(step=number, rule=NONFINITE, why=_not_finite(rule.watches, value, numbers)))
                self._above |= {NONFINITE, str(rule.watches)}
                return found
            self._above.discard(str(rule.watches))
            limit, calm = spike_limits(np.array(self._windows[rule.name]), value, rule.least_factor)
            self._windows[rule.name].append(value)
            if value <= calm:
                self._above.discard(rule.name)
            elif value > limit and rule.name not in self._above:
                self._above.add(rule.name)
                why = f"the {_shown(rule.watches)} is {value:.4g}, above {limit:.4g}, the limit of the last steps"
                found.append(Alarm(step=number, rule=rule.name, why=why, value=value, limit=limit))
        # Of a step that is not recorded only the loss is known: a norm that was not finite may still be none.
        if not self._above & {*_TITLES}:
            self._above.discard(NONFINITE)
        return found

    def diverging(self, number: int, numbers: Mapping[str, float]) -> list[Alarm]:
        """Returns the alarm that a step is too large for the model; `step` calls it where the step is taken.

        Args:
            number: The step.
            numbers: As for `step`.
        """
        alarm = self._divergence.step(number, numbers)
        return [] if alarm is None else [alarm]

    def _leaves_out(self, number: int, numbers: Mapping[str, float]) -> bool:
        """Returns whether a step leaves out the update of what is not finite by itself, and has not for long.

        So does one with a dynamic loss scale, and `optax.apply_if_finite`.
        """
        update = numbers.get("update_norm")
        is_finite = all(math.isfinite(numbers.get(column, 0.0)) for column in ("loss", "grad_norm"))
        if update is None:  # a step that is not recorded is as the recorded one before it
            return not is_finite and self._left_out_since is not None and number - self._left_out_since < _LEFT_OUT
        if update or is_finite:
            self._left_out_since = None
            return False
        self._left_out_since = number if self._left_out_since is None else self._left_out_since
        return number - self._left_out_since < _LEFT_OUT

    def skipped(self) -> None:
        """Notes that the update of the last step was skipped: a step after it that is as wrong is another alarm.

        Its numbers still count for the limits, so that a level which stays high is not skipped forever.
        """
        self._above.clear()

    def named(self, alarm: Alarm, stats: Statistics) -> Alarm:
        """Returns an alarm about a step with the tensor that deviates most from what it was; as it is where none does.

        What is wrong may be in no tensor that is observed, such as a target of which a probe sees nothing.

        Args:
            alarm: The alarm.
            stats: The statistics of the tensors at that step, by key, in the order of the step.
        """
        rule = BY_NAME[alarm.rule]
        deviations = {key: self._deviation(key, each) for key, each in stats.items()
                      if naming.split_key(key)[0] in rule.families}  # fmt: skip
        key = forward_most({key: each for key, each in deviations.items() if each >= rule.least_deviation})
        return alarm if key is None else replace(alarm, key=key, why=f"deviates most: {alarm.why}")

    def recorded(
        self, number: int, stats: Statistics, unchanged: Mapping[str, bool], rate: float | None = None
    ) -> list[Alarm]:
        """Returns the alarms about the tensors of a recorded step.

        Args:
            number: The step.
            stats: The statistics of the tensors, by key, in the order of the step.
            unchanged: Whether the step left a trained parameter as it was, by name, as far as that is known.
            rate: The learning rate; None where it is not known.
        """
        self._divergence.recorded(update_direction(stats))
        # Numbers that are not finite are the fault: a parameter that is NaN stays, and a rectifier of NaN is dead.
        tells = not (self._is_solved or self._is_nonfinite(stats))
        of_tensors = self._tensors.alarms(number, stats, unchanged, rate) if tells else ()
        found = [self._after_update(alarm) for alarm in of_tensors]
        for key, each in stats.items():
            logarithm = _logarithm(each)
            if logarithm is not None:
                self._logarithms.setdefault(key, deque(maxlen=_COMPARED)).append(logarithm)
        return [replace(alarm, step=number) for alarm in found]

    def _is_nonfinite(self, stats: Statistics) -> bool:
        """Returns whether the loss or a norm of the last step is not finite, or a parameter or its gradient."""
        of_parameters = (each for key, each in stats.items() if naming.split_key(key)[0] in _OF_PARAMETERS)
        return NONFINITE in self._above or any(each.get("nan") or each.get("inf") for each in of_parameters)

    def _after_update(self, alarm: Alarm) -> Alarm:
        """Returns an alarm about units that get no gradient with the update that may have taken them there."""
        died = alarm.rule == "dying"
        update = self._divergence.cause_of_zeros(lived=died) if died or ZERO_GRADIENT in alarm.why else ""
        return replace(alarm, why=f"{alarm.why}; {update}") if update else alarm

    def to_json(self) -> dict[str, Any]:
        """Returns everything that it remembers, for `restore`."""
        return {
            "windows": {name: list(each) for name, each in self._windows.items()},
            "above": sorted(self._above),
            "logarithms": {key: list(each) for key, each in self._logarithms.items()},
            "tensors": self._tensors.to_json(),
            "divergence": self._divergence.to_json(),
            "descent": self._descent.to_json(),
            "left_out_since": self._left_out_since,
        }

    def restore(self, found: Mapping[str, Any]) -> None:
        """Remembers what `to_json` returned."""
        self._windows = {name: deque(each, SPIKE_WINDOW) for name, each in found["windows"].items()}
        self._above = set(found["above"])
        self._logarithms = {key: deque(each, _COMPARED) for key, each in found["logarithms"].items()}
        self._tensors.restore(found["tensors"])
        self._left_out_since = found.get("left_out_since")
        if "divergence" in found:  # a state of an older gradscope has none
            self._divergence.restore(found["divergence"])
        if "descent" in found:  # nor has one of an older gradscope this
            self._descent.restore(found["descent"])

    def _deviation(self, key: str, stats: Mapping[str, float | int | None]) -> float:
        """Returns how far a tensor is from what it was, in its own standard deviations of decimal logarithms."""
        if stats.get("nan") or stats.get("inf"):
            return math.inf
        before, now = self._logarithms.get(key), _logarithm(stats)
        if not before or now is None:
            return 0.0
        values = np.array(before)
        return abs(now - float(np.median(values))) / max(float(values.std()), _LEAST_DECADES)


def _logarithm(stats: Mapping[str, float | int | None]) -> float | None:
    l2 = stats.get("l2")
    return math.log10(l2) if l2 else None


def _not_finite(watched: str | None, value: float, numbers: Mapping[str, float]) -> str:
    squares = watched in ("grad_norm", "update_norm") and value == math.inf
    why = ", as an element is, or the sum of their squares is beyond float32" if squares else ""
    norm = numbers.get("grad_norm", math.nan)
    if watched == "update_norm" and math.isfinite(norm):
        why += "; the gradients are finite, so that the optimizer made it, as "
        if value == math.inf and norm >= _OVERFLOWING:
            why += f"a learning rate makes it of gradients as large as these, with a norm of {brief(norm)}"
        else:
            why += (
                "where it divides by a moment of zero and an epsilon that its dtype rounds to zero, such as 1e-8 in "
                "float16"
            )
    return f"the {_shown(watched)} is {value}{why}"


def _shown(column: str | None) -> str:
    return _TITLES[column or ""]
