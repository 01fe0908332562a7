"""Units die where more and more of them get no gradient, of whatever examples: what dies once stays dead."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from gradscope import naming
from gradscope.history.alarms.alarm_rules import Statistics, forward_most
from gradscope.history.alarms.streaks import IN_A_ROW, Streak, others_alike
from gradscope.history.history_rows import Alarm

#: Fewer than half of the elements that had a gradient still have one, where fewer than `_ALIVE` had none before. Those
#: of a kernel whose inputs are zero, as the dark pixels of all images, had none from the start, and are no dead units.
_DEAD: Final = 0.5
_ALIVE: Final = 0.25
#: The share of the units that come alive together where they were not dead: their examples were missing.
_TOGETHER: Final = 0.25
#: The share of the gradients that the loss sent back below which it sends few back.
_QUIET: Final = 1 / 8

#: Where the norm of all gradients is such a share of the first, the loss sends back what is left of a perfect fit.
_CONVERGED: Final = 1e-5

#: What a layer's name ends with that is called again.
CALL: Final = re.compile(r"(#\d+|\[\d+\])$")


class DyingUnits:
    """`DyingUnits` find units that die, and remember what they need of earlier steps.

    Args:
        sizes: The number of elements of each tensor, by key; may be filled later.
    """

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self._sizes = sizes
        self._least: dict[str, float] = {}
        self._most: dict[str, float] = {}
        self._revived: set[str] = set()
        self._most_alive = self._first_norm = 0.0
        self._streak = Streak()

    def alarms(self, stats: Statistics, spared: Collection[str]) -> Iterable[Alarm]:
        """Yields the alarm of a recorded step, of step 0.

        Args:
            stats: The statistics of the tensors, by key, in the order of the step.
            spared: The names of parameters whose gradient is zero without a unit that is dead.
        """
        shares = {
            key: zeros / self._sizes[key]
            for key, each in stats.items()
            for family, name in [naming.split_key(key)]
            if family == naming.PARAM_GRAD and name not in spared and (zeros := each.get("zeros")) is not None
            and self._sizes.get(key)
        }  # fmt: skip
        if self._has_converged(stats) or self._is_quiet(stats):
            return
        self._revive(shares)
        self._least |= {key: min(share, self._least.get(key, 1.0)) for key, share in shares.items()}
        dead = {
            key: self._counts_as_dead(key, shares[key])
            and self._counts_as_dead(key, share)
            and key not in self._revived
            for key, share in _of_units(shares, self._sizes).items()
        }
        keys = self._streak.reached(dead, IN_A_ROW)
        key = forward_most({key: shares[key] - self._least[key] for key in keys})
        if key is not None:
            others = others_alike(key, keys)
            why = f"is zero in {shares[key]:.0%} of its elements, and was in {self._least[key]:.0%}{others}"
            if self._sizes[key] == 1:
                why = f"is zero, and was not{others}"
            # A share may go up and down about the limit.
            self._least |= {each: shares[each] for each in keys}
            yield Alarm(step=0, rule="dying", key=key, why=why, value=shares[key], limit=_DEAD)

    def to_json(self) -> dict[str, Any]:
        """Returns everything that they remember."""
        return {
            "least_dead": self._least,
            "most_dead": self._most,
            "revived": sorted(self._revived),
            "most_alive": self._most_alive,
            "first_norm": self._first_norm,
            "streak": self._streak.lengths,
        }

    def restore(self, found: Mapping[str, Any]) -> None:
        """Remembers what `to_json` returned."""
        self._least, self._most = dict(found["least_dead"]), dict(found["most_dead"])
        self._revived, self._most_alive = set(found["revived"]), found["most_alive"]
        self._first_norm = found.get("first_norm", 0.0)
        self._streak = Streak(dict(found["streak"]))

    def _counts_as_dead(self, key: str, share: float) -> bool:
        """Returns whether fewer than half of the elements have a gradient that had one, where most had one."""
        least = self._least[key]
        return 1 - share < _DEAD * (1 - least) and least < _ALIVE

    def _has_converged(self, stats: Statistics) -> bool:
        """Returns whether all gradients together are what is left of a fit that is perfect but for rounding.

        Those of most examples have rounded to zero then, whatever units they meet. Gradients that are all exactly zero
        say nothing of that: a network whose units are all dead has such, too.
        """
        norms = [each["l2"] or 0.0 for key, each in stats.items()
                 if naming.split_key(key)[0] == naming.PARAM_GRAD and "l2" in each]  # fmt: skip
        norm = math.hypot(*norms)
        self._first_norm = self._first_norm or norm
        return 0 < norm < _CONVERGED * self._first_norm

    def _revive(self, shares: Mapping[str, float]) -> None:
        """Remembers of which parameters many elements have a gradient again that had none.

        So it is of a table of positions where examples are short, and of the head of a task that a batch has none of. A
        first step without any gradient says nothing: the layer behind may begin at zero.
        """
        for key, share in shares.items():
            if key in self._most:
                self._most[key] = max(share, self._most[key])
            elif share < 1:
                self._most[key] = share
            if share < self._most.get(key, 0.0) - _TOGETHER:
                self._revived.add(key)

    def _is_quiet(self, stats: Statistics) -> bool:
        """Returns whether the loss sends far fewer gradients back than before, as a hinge with most margins kept.

        A unit without a gradient is not dead then: no example may have one that meets it.
        """
        names = {key: naming.split_key(key) for key in stats}
        layers = {name.rpartition("/")[0] for family, name in names.values() if family == naming.PARAM_GRAD}
        zeros = [(each["zeros"], size) for key, each in stats.items()
                 if names[key][0] == naming.ACTIVATION_GRAD and CALL.sub("", names[key][1]) in layers
                 and each.get("zeros") is not None and (size := self._sizes.get(key))]  # fmt: skip
        if not zeros:
            return False
        number, size = zeros[-1]
        alive = 1 - (number or 0) / size
        self._most_alive = max(alive, self._most_alive)
        return alive < _QUIET * self._most_alive


def _of_units(shares: Mapping[str, float], sizes: Mapping[str, int]) -> dict[str, float]:
    """Returns the share of zeros that is that of dead units, as far as another parameter of the layer tells.

    A kernel has no gradient of its inputs that are zero, either, as behind dead units of the layer before. The bias
    beside it has an element for each unit, and no inputs.

    Args:
        shares: The share of zeros of each gradient, by key.
        sizes: The number of elements of each, by key.
    """
    layers: dict[str, list[str]] = {}
    for key in shares:
        layers.setdefault(key.rpartition("/")[0], []).append(key)
    found = dict(shares)
    for keys in layers.values():
        for key in keys:
            biases = [each for each in keys if 1 < sizes[each] < sizes[key] and not sizes[key] % sizes[each]]
            found[key] = min([shares[key], *(shares[each] for each in biases)])
    return found
