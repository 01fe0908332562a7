"""Rules about tensors are applied to recorded steps."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from gradscope import naming
from gradscope.dump.record import AS_DATA, STOPPED
from gradscope.history.alarms.alarm_rules import Statistics, forward_most
from gradscope.history.alarms.dying_units import DyingUnits
from gradscope.history.alarms.reset_optimizer import ResetOptimizer
from gradscope.history.alarms.streaks import IN_A_ROW, Streak, others_alike
from gradscope.history.alarms.stuck_parameters import StuckParameters
from gradscope.history.history_rows import Alarm

#: The update of a parameter over the parameter, and recorded steps in a row that it has to be outside.
_LEAST_RATIO: Final = 1e-7
_MOST_RATIO: Final = 1e-1
_RATIO_ROW: Final = 10
#: A ratio that came nearer by this factor meanwhile is on its way back, as that of a parameter that grows from zero.
_BACK: Final = 2.0
#: A parameter is about zero where its rms is below this share of the median of all: noise may then be as large as it
#: is, as in a bias without anything to learn.
_NEAR_ZERO: Final = 0.1

#: Recorded steps that say how gradients change over the depth in the beginning, decades that they have to change by
#: from the last layer to the first, and decades more than in the beginning.
_FIRST: Final = 5
_DECADES: Final = 3.0
_STEEPER: Final = 2.0
#: Layers that have a depth.
_FEWEST_LAYERS: Final = 4

#: An update is the gradient itself where their statistics differ by no more, as where it is a difference of parameters.
_SAME: Final = 1e-3

#: Which share of gradients rounding leaves where they cancel.
_CANCELS: Final = 1e-5

#: What a ratio that is too small says where all of them always were.
_NEVER_MOVED: Final = (
    "; none that does not begin at zero was ever changed by more: the learning rate is too small, or a clip leaves too "
    "little of the gradients"
)


class TensorRules:
    """`TensorRules` apply the rules about tensors, and remember what they need of earlier steps.

    Args:
        sizes: The number of elements of each tensor, by key; may be filled later.
        unreached: Why no gradient reaches a parameter, by name; may be filled later.
        affine: The names of the parameters in which the loss is affine; may be filled later.
        returned: The keys of the gradients that return to the layers that read a parameter, by its name; may be filled
            later.
    """

    def __init__(
        self,
        sizes: Mapping[str, int],
        unreached: Mapping[str, str],
        affine: Collection[str],
        returned: Mapping[str, Collection[str]],
    ) -> None:
        self._sizes = sizes
        self._unreached = unreached
        self._affine = affine
        self._returned = returned
        self._stuck = StuckParameters(unreached)
        self._reset = ResetOptimizer()
        self._dying = DyingUnits(sizes)
        self._ratios: dict[str, deque[float]] = {}
        self._from_zero: set[str] = set()
        self._moved = False
        self._depths: list[tuple[float, dict[str, float]]] = []
        self._streaks = {name: Streak() for name in ("high", "low", "raw", "vanishing", "exploding")}

    def alarms(
        self, number: int, stats: Statistics, unchanged: Mapping[str, bool], rate: float | None = None
    ) -> Iterable[Alarm]:
        """Yields the alarms of a recorded step, of step 0.

        A parameter that is not trained on purpose, as that of a target network, has none: it stays, or is a copy.

        Args:
            number: The step.
            stats: The statistics of the tensors, by key, in the order of the step.
            unchanged: Whether the step left a trained parameter as it was, by name, as far as that is known.
            rate: The learning rate; None where it is not known.
        """
        on_purpose = {name for name, why in self._unreached.items() if why.endswith((STOPPED, AS_DATA))}
        on_purpose |= self._cancelled(stats)
        trained = {key: each for key, each in stats.items() if naming.split_key(key)[1] not in on_purpose}
        own = {name: each for name, each in unchanged.items() if name not in on_purpose}
        yield from self._stuck.alarms(number, trained, own, rate)
        ratios = {
            key: ratio
            for key, each in trained.items()
            if (ratio := each.get("ratio")) is not None and naming.split_key(key)[1] not in self._stuck.still
        }
        yield from self._raw_gradient(trained)
        yield from self._reset.alarms(stats)
        yield from self._dying.alarms(stats, on_purpose)
        yield from self._update_ratio(stats, ratios)
        yield from self._depth(stats)

    def to_json(self) -> dict[str, Any]:
        """Returns everything that they remember."""
        return {
            "dying": self._dying.to_json(),
            "ratios": {key: list(each) for key, each in self._ratios.items()},
            "from_zero": sorted(self._from_zero),
            "moved": self._moved,
            "depths": self._depths,
            "streaks": {name: each.lengths for name, each in self._streaks.items()},
            "stuck": self._stuck.to_json(),
            "reset": self._reset.to_json(),
        }

    def restore(self, found: Mapping[str, Any]) -> None:
        """Remembers what `to_json` returned."""
        self._ratios = {key: deque(each, _RATIO_ROW) for key, each in found["ratios"].items()}
        # A state of an older gradscope has none of these.
        self._from_zero, self._moved = set(found.get("from_zero", ())), found.get("moved", True)
        self._depths = [(decades, dict(each)) for decades, each in found["depths"]]
        self._streaks |= {name: Streak(dict(each)) for name, each in found["streaks"].items()}
        if "dying" in found:
            self._dying.restore(found["dying"])
        if "stuck" in found:
            self._stuck.restore(found["stuck"])
        if "reset" in found:
            self._reset.restore(found["reset"])

    def _cancelled(self, stats: Statistics) -> set[str]:
        """Returns the parameters of one element whose gradient is zero because what comes back to their layer cancels.

        Such is the bias of a head of which the loss takes differences alone, also of a step at which no margin of a
        hinge is kept. A bias that is masked has layers whose gradients do not add up to zero.
        """
        return {name for name, keys in self._returned.items()
                if self._sizes.get(key := naming.key_of(naming.PARAM_GRAD, name)) == 1
                and stats.get(key, {}).get("l2") == 0
                and self._adds_up_to_zero([key for key in keys if key in stats], stats)}  # fmt: skip

    def _adds_up_to_zero(self, keys: Collection[str], stats: Statistics) -> bool:
        """Returns whether the elements of some tensors that are not all zero add up to zero together."""
        total = scale = 0.0
        for key in keys:
            mean, rms = stats[key].get("mean"), stats[key].get("rms")
            if mean is None or rms is None:
                return False
            total, scale = total + mean * self._sizes.get(key, 0), scale + rms * self._sizes.get(key, 0)
        return scale > 0 and abs(total) <= _CANCELS * scale

    def _raw_gradient(self, stats: Statistics) -> Iterable[Alarm]:
        updates = {key: each for key, each in stats.items()
                   if naming.split_key(key)[0] == naming.UPDATE and each.get("l2")}  # fmt: skip
        raw = {key: _is_gradient(key, each, stats) for key, each in updates.items()}
        # A dual variable climbs the loss on purpose.
        asked = {key: each for key, each in raw.items() if naming.split_key(key)[1] not in self._affine}
        keys = self._streaks["raw"].reached(asked if not all(raw.values()) else {}, IN_A_ROW)
        if keys:
            why = (
                f"is the gradient itself at {IN_A_ROW} recorded steps in a row{others_alike(keys[0], keys)}, which "
                "raises the loss, while others are of an optimizer: optax.masked hands on what it leaves out, and "
                "optax.set_to_zero() freezes it"
            )
            yield Alarm(step=0, rule="raw-gradient", key=keys[0], why=why)

    def _update_ratio(self, stats: Statistics, ratios: Mapping[str, float]) -> Iterable[Alarm]:
        for key, ratio in ratios.items():
            self._ratios.setdefault(key, deque(maxlen=_RATIO_ROW)).append(ratio)
        # One that was about zero has the size that its updates gave it, such as a bias that noise moves.
        self._from_zero |= _near_zero(stats)
        sized = [ratio for key, ratio in ratios.items() if key not in self._from_zero]
        middle = float(np.median(sized)) if sized else 0.0
        self._moved = self._moved or max(sized, default=0.0) >= _LEAST_RATIO
        high = {key: ratio > _MOST_RATIO and key not in self._from_zero for key, ratio in ratios.items()}
        # An update of zero is none: that of a parameter that moves once in several steps, or that is stuck.
        low = {key: 0 < ratio < _LEAST_RATIO and (middle >= _LEAST_RATIO or not self._moved)
               for key, ratio in ratios.items()}  # fmt: skip
        sides = (
            ("high", _MOST_RATIO, high, lambda first, last: last * _BACK < first),
            ("low", _LEAST_RATIO, low, lambda first, last: last > first * _BACK),
        )
        side: tuple[str, float, dict[str, bool], Callable[[float, float], bool]]
        for side in sides:
            name, limit, outside, returning = side
            keys = self._streaks[name].reached(outside, _RATIO_ROW)
            for key in list(keys):
                if returning(self._ratios[key][0], self._ratios[key][-1]):
                    self._streaks[name].lengths[key] -= 1  # it is asked again at the next step
                    keys.remove(key)
            key = forward_most({key: abs(math.log10(max(ratios[key], 1e-300) / limit)) for key in keys})
            if key is not None:
                what = "more" if name == "high" else "less"
                why = (
                    f"is {ratios[key]:.2g} of the parameter, {what} than {limit:g} at {_RATIO_ROW} recorded steps in a "
                    f"row{others_alike(key, keys)}{'' if self._moved else _NEVER_MOVED}"
                )
                yield Alarm(step=0, rule="update-ratio", key=key, why=why, value=ratios[key], limit=limit)

    def _layers(self, stats: Statistics) -> list[str]:
        """Returns the keys of the gradients of layers in the order of the step, up to the last layer with weights.

        Behind it is the loss, whose own values have gradients that stay while those of what it is made of vanish: an
        example that is fitted sends nothing back.
        """
        keys = [key for key in stats if naming.split_key(key)[0] == naming.ACTIVATION_GRAD]
        weighted = {key for name, each in self._returned.items() for key in each
                    if self._sizes.get(naming.key_of(naming.PARAM_GRAD, name), 0) > 1}  # fmt: skip
        last = max((at for at, key in enumerate(keys) if key in weighted), default=len(keys) - 1)
        return keys[: last + 1]

    def _depth(self, stats: Statistics) -> Iterable[Alarm]:
        logarithms = {key: math.log10(rms) for key in self._layers(stats) if (rms := stats[key].get("rms"))}
        if len(logarithms) < _FEWEST_LAYERS:
            return
        # From the last layer to the first, the way that gradients go.
        decades = -_slope(list(logarithms.values())) * (len(logarithms) - 1)
        if len(self._depths) < _FIRST:
            self._depths.append((decades, logarithms))
            return
        before = float(np.median([each for each, _ in self._depths]))
        first = {key: float(np.median([each[key] for _, each in self._depths if key in each] or [value]))
                 for key, value in logarithms.items()}  # fmt: skip
        for rule, sign in (("vanishing", -1), ("exploding", 1)):
            steep = sign * decades > _DECADES and sign * (decades - before) > _STEEPER
            if self._streaks[rule].reached({rule: steep}, IN_A_ROW):
                key = forward_most({key: abs(value - first[key]) for key, value in logarithms.items()})
                verb = "shrink" if sign < 0 else "grow"
                why = (
                    f"changed most: the gradients {verb} by a factor of {10 ** abs(decades):.2g} from the last layer "
                    f"to the first; in the beginning they {_changed(before)}"
                )
                limit = 10 ** (sign * _DECADES)
                yield Alarm(step=0, rule=rule, key=key, why=why, value=10**decades, limit=limit)


def _near_zero(stats: Statistics) -> set[str]:
    """Returns the keys of the updates of parameters that are about zero, next to all others."""
    parameters = {
        name: rms
        for key, each in stats.items()
        for family, name in [naming.split_key(key)]
        if family == naming.PARAM and (rms := each.get("rms")) is not None
    }
    limit = _NEAR_ZERO * float(np.median(list(parameters.values()))) if parameters else 0.0
    return {naming.key_of(naming.UPDATE, name) for name, rms in parameters.items() if rms < limit}


def _is_gradient(key: str, update: Mapping[str, float | int | None], stats: Statistics) -> bool:
    """Returns whether an update is the parameter's gradient, of its sign, too, by their statistics."""
    gradient = stats.get(naming.key_of(naming.PARAM_GRAD, naming.split_key(key)[1]), {})
    pairs = [(update.get(column), gradient.get(column)) for column in ("l2", "mean", "amax")]
    return all(a is not None and b is not None and b != 0 and abs(a - b) <= _SAME * abs(b) for a, b in pairs)


def _slope(values: Sequence[float]) -> float:
    """Returns the slope of the least-squares line through values at 0, 1, 2, ..."""
    at = np.arange(len(values)) - (len(values) - 1) / 2
    return float(at @ np.array(values) / (at @ at))


def _changed(decades: float) -> str:
    return f"{'shrank' if decades < 0 else 'grew'} by {10 ** abs(decades):.2g}"
