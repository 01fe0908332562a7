"""A run diverges where its loss grows by orders, or stays high, after updates about as large as the parameters."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from gradscope.history.alarms.alarm_rules import DIVERGING
from gradscope.history.alarms.update_direction import CLIMBS
from gradscope.history.history_rows import Alarm

#: Losses before the growth with whose median it is compared, and steps in which an update may have caused it.
_WINDOW: Final = 32
#: The least share of the parameters that such an update is.
_SHARE: Final = 0.3
#: A loss has grown where it is so many times what it was, at so many steps in a row; a catapult is over before.
_GROWTH: Final = 10.0
_IN_A_ROW: Final = 5
#: At once where it is so many times what it was, after an update as large as the parameters.
_AT_ONCE: Final = 1000.0
_WHOLE: Final = 1.0
#: Or not finite without having grown, after one so many times as large: a root of a parameter that has come down to
#: zero, step by step, is not finite either.
_FAR: Final = 10.0
#: After so many steps a run that learns has losses below this share of the first, or one below the smaller share. One
#: that does not may have nothing to learn: its updates are too large where a part of the parameters that is one, and
#: losses were so many times the first at the median of so many.
_LATE: Final = 128
_PART: Final = 0.1
_ROSE: Final = 2.0
_HIGH: Final = 8
_USUAL: Final = 0.8
_LEAST: Final = 0.72
#: A loss of so many times the largest magnitude of so many at first, below zero, has no lower bound.
_DEEP: Final = 1000.0
_IN_FRONT: Final = 3


@dataclass(frozen=True, slots=True)
class _Update:
    """An `_Update` is one step's, at least what share of the parameters it is, and its learning rate where known."""

    step: int
    share: float
    rate: float | None = None


@dataclass(slots=True)
class Divergence:
    """A `Divergence` follows the loss of a run, and the size of its updates next to its parameters.

    What the parameters' norm is after updates is bounded by the triangle inequality where it is not known, so that no
    step has to measure it.

    Why these limits (2026-11): 15 models were trained with 8 optimizers at 25 learning rates, twice 150 steps each. Of
    2,540 runs whose learning rate is at most the best one, or that came at least four fifths as far, one is called
    diverging, of a batch of one example; of 3,163 that came less than a third as far, 2,642 are: of those by SGD at 100
    that are missed have a loss that hardly grows.

    Why a loss that stays high counts, too (2026-11): Adam and its kin at a rate that is far too large, above all after
    a warm-up, leave a network that answers the same to everything, whose loss is about that of the first step. Nine
    models were trained with Adam and with AdamW after a warm-up at 13 rates, twice 300 steps each, and with SGD: of 205
    runs that came less than a third as far as the best, growth names the rate of 76, and this of 55 more. Of 892 that
    learned, five are named by it: at 100 times the best rate and more, before the rate had decayed. A regression that
    begins at zero and has hardly a signal does not lower its loss, either, after updates as large as the parameters: of
    48 such runs 42 would be named if the loss had not to rise.
    """

    first: float | None = None
    losses: deque[float] = field(default_factory=lambda: deque[float](maxlen=_WINDOW))
    updates: deque[_Update] = field(default_factory=lambda: deque[_Update](maxlen=_WINDOW))
    reach: float | None = None
    widest: float = 0.0
    streak: int = 0
    most: float = 0.0
    raised: bool = False
    steps: int = 0
    recent: deque[float] = field(default_factory=lambda: deque[float](maxlen=_WINDOW))
    largest: _Update | None = None
    rose: bool = False
    named: bool = False
    climbs: bool | None = None
    told: int | None = None
    diverged: int | None = None

    def recorded(self, direction: float | None) -> None:
        """Notes whether the updates of a recorded step, and of all before, climb the loss.

        Args:
            direction: The cosine between its updates and its gradients; None where that is not known.
        """
        if direction is not None:
            self.climbs = direction > CLIMBS and self.climbs is not False

    def step(self, number: int, numbers: Mapping[str, float]) -> Alarm | None:
        """Returns the alarm of a step; None where it has none.

        Args:
            number: The step.
            numbers: Its numbers by the columns of `steps`, as far as they are known; in the order of the steps.
        """
        loss = numbers.get("loss")
        if loss is None:
            self._follow(number, numbers)
            return None
        usual = self._usual()
        finite = all(math.isfinite(value) for value in numbers.values())
        scale = 0.0 if usual is None else self._scale(usual)
        growth = 0.0 if usual is None or not scale else (loss - usual) / scale + 1
        if finite and growth < _GROWTH:
            self.streak, self.most, self.raised = 0, 0.0, False
            self.first = loss if self.first is None else self.first
            self.losses.append(loss)
        elif finite:
            self.streak += 1
            self.most = max(self.most, growth)
        self.steps += 1
        self.recent.append(loss)
        last = [*self.recent][-_HIGH:]
        self.rose = self.rose or (self.steps > _HIGH and float(np.median(last)) >= _ROSE * (self.first or math.inf))
        found = None
        if usual is not None and not self.raised and self._has_grown(finite=finite):
            self.raised = self.named = True
            found = self._alarm(number, loss, usual, numbers)
            self.updates.clear()  # what comes of them is said
        elif finite and not self.named and (update := self._in_vain()) is not None:
            self.named = True
            found = self._stagnant(number, update)
        self._follow(number, numbers)
        self.diverged = self.diverged if found is None else number
        return found

    def cause_of_zeros(self, *, lived: bool) -> str:
        """Returns the cause of units that get no gradient: a divergence before, or a large update; "" for none.

        Args:
            lived: Whether they lived before: then one that is a large part of the parameters may have done so, and else
                one that is as large.
        """
        if self.diverged is not None:
            return f"it follows from the loss that diverged at step {self.diverged:,}"
        least = _SHARE if lived else _WHOLE
        found = next((each for each in self.updates if each.share >= least), None)
        if found is None:
            return ""
        if found.step == self.told:
            return f"it follows from the update of step {found.step:,}, too"
        self.told = found.step
        rate = "" if found.rate is None else f", {found.rate:.4g},"
        as_by = "" if self.climbs else f", as by a learning rate{rate} that is too large"
        return f"the update of step {found.step:,} is {_share(found)} the parameters{as_by}"

    def to_json(self) -> dict[str, Any]:
        """Returns everything that it remembers, for `restore`."""
        updates = [[each.step, each.share] for each in self.updates]
        return {
            "first": self.first, "losses": list(self.losses), "updates": updates, "reach": self.reach,
            "widest": self.widest, "streak": self.streak, "most": self.most, "raised": self.raised,
            "steps": self.steps, "recent": list(self.recent), "rose": self.rose, "named": self.named,
            "climbs": self.climbs, "told": self.told, "diverged": self.diverged,
            "largest": None if self.largest is None else [self.largest.step, self.largest.share, self.largest.rate],
        }  # fmt: skip

    def restore(self, found: Mapping[str, Any]) -> None:
        """Remembers what `to_json` returned."""
        self.first, self.reach, self.streak = found["first"], found["reach"], found["streak"]
        self.most, self.raised, self.widest = found["most"], found["raised"], found["widest"]
        self.losses = deque(found["losses"], _WINDOW)
        self.updates = deque((_Update(step, share) for step, share in found["updates"]), _WINDOW)
        # A state of an older version lacks these.
        self.steps, self.named = found.get("steps", 0), found.get("named", False)
        self.climbs, self.told, self.diverged = found.get("climbs"), found.get("told"), found.get("diverged")
        self.recent, self.rose = deque(found.get("recent", ()), _WINDOW), found.get("rose", False)
        self.largest = None if found.get("largest") is None else _Update(*found["largest"])

    def _usual(self) -> float | None:
        """Returns what the loss was: that of the first step, or the median of the last ones if that is more."""
        # By the first, so that the noise of a loss that has become tiny is none of its growth.
        return None if self.first is None else max(self.first, float(np.quantile(self.losses, 0.5, method="lower")))

    def _scale(self, usual: float) -> float:
        """Returns what a loss grows by until it is twice what it was: negative ones may have been further from zero."""
        # As those of adversarial networks, which go up and down around zero and begin near it.
        return max(abs(usual), -min(self.losses))

    def _has_grown(self, *, finite: bool) -> bool:
        share = max((each.share for each in self.updates), default=0.0)
        if not finite:
            return share >= (_SHARE if self.streak else _FAR)
        return (self.streak >= _IN_A_ROW and share >= _SHARE) or (self.most >= _AT_ONCE and share >= _WHOLE)

    def _in_vain(self) -> _Update | None:
        """Returns the largest update where it is a part of the parameters, and the loss has risen, and never fallen."""
        update, first = self.largest, self.first
        if update is None or update.share < _PART or not self.rose or not first or first < 0 or self.steps < _LATE:
            return None
        fell = float(np.median(self.recent)) < _USUAL * first or min(self.recent) < _LEAST * first
        return None if fell else update

    def _follow(self, number: int, numbers: Mapping[str, float]) -> None:
        """Notes at least what share of the parameters the update of a step is, where that is known."""
        norm, update = numbers.get("param_norm"), numbers.get("update_norm")
        known = [value for value in (norm, update) if value is not None]
        if update is None or not all(map(math.isfinite, known)):
            self.reach = None
            return
        reach = self.reach if norm is None else norm
        self.widest = max(self.widest, norm or 0.0)
        if reach:  # of parameters that shrink, such as one that comes down to zero, the share of what they were
            made = _Update(number, update / max(reach, self.widest), numbers.get("learning_rate"))
            self.updates.append(made)
            self.largest = made if self.largest is None or made.share > self.largest.share else self.largest
        self.reach = None if reach is None else reach + update

    def _stagnant(self, number: int, update: _Update) -> Alarm:
        usual, first = float(np.median(self.recent)), self.first or 0.0
        why = (
            f"the update of step {update.step:,} is {_share(update)} the parameters, and the loss, {first:.4g} at "
            f"first, rose to twice that or more, and came down to {usual:.4g} only: {self._cause(update.rate)}"
        )
        return Alarm(step=number, rule=DIVERGING, why=why, value=usual, limit=_USUAL * first)

    def _alarm(self, number: int, loss: float, usual: float, numbers: Mapping[str, float]) -> Alarm:
        rate = numbers.get("learning_rate")
        update = next(each for each in self.updates if each.share >= _SHARE)  # the first, which came before the growth
        lost = math.isfinite(loss) and not math.isfinite(numbers.get("grad_norm", 0.0))
        gradient = ", whose gradient is not finite" if lost else ""
        verb, cause = "grew" if loss > usual else "went", self._cause(rate)
        if not self.climbs and self._has_no_end():
            gradient = f" by way of {min(self.losses):.4g}"
            cause = "a term of the loss has no lower bound; look at its sign"
        why = (
            f"the update of step {update.step:,} is {_share(update)} the parameters, and the loss {verb} from "
            f"{usual:.4g} to {loss:.4g}{gradient}: {cause}"
        )
        value, limit = loss if math.isfinite(loss) else None, usual + (_GROWTH - 1) * self._scale(usual)
        return Alarm(step=number, rule=DIVERGING, why=why, value=value, limit=limit)

    def _has_no_end(self) -> bool:
        """Returns whether the loss fell as far below zero as nothing falls that has a lower bound."""
        return min(self.losses) < -_DEEP * max(map(abs, [self.first or 0.0, *[*self.losses][:_IN_FRONT]]))

    def _cause(self, rate: float | None) -> str:
        if self.climbs:
            return "the updates point along the gradients, so that adding them raises the loss"
        return "the learning rate is too large" if rate is None else f"the learning rate, {rate:.4g}, is too large"


def _share(update: _Update) -> str:
    return f"{update.share:.0%} of" if update.share < _WHOLE else f"{float(f'{update.share:.2g}'):,g} times"
