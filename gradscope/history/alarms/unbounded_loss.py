"""A loss has no lower bound where it falls below zero by orders, ever faster, while its gradient grows by orders."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gradscope.history.alarms.alarm_rules import UNBOUNDED
from gradscope.history.history_rows import Alarm

#: The first steps, whose largest loss and gradient are what both were, and the last ones, all of which have to be
#: beyond the limits.
_IN_A_ROW: Final = 3
#: How many times what it was the loss is, below zero, and the norm of the gradients.
_FACTOR: Final = 1000.0
#: How many times as far below zero it is as after half the steps. The return that an actor maximises grows with the
#: steps or more slowly, and comes to an end; that of a term of the wrong sign, which feeds itself, grows faster.
_FASTER: Final = 16.0


@dataclass(slots=True)
class Descent:
    """A `Descent` follows the loss of a run and the norm of its gradients, at the steps at which both are known.

    It judges after 2, 4, 8, ... of these steps, so that it remembers one loss for "half the steps".
    """

    count: int = 0
    loss: float = 0.0
    gradient: float = 0.0
    half: float = 0.0
    last: deque[list[float]] = field(default_factory=lambda: deque[list[float]](maxlen=_IN_A_ROW))
    raised: bool = False

    def step(self, number: int, numbers: Mapping[str, float]) -> Alarm | None:
        """Returns the alarm of a step; None where it has none.

        Args:
            number: The step.
            numbers: Its numbers by the columns of `steps`, as far as they are known.
        """
        loss, gradient = numbers.get("loss"), numbers.get("grad_norm")
        if loss is None or gradient is None or not (math.isfinite(loss) and math.isfinite(gradient)):
            return None
        self.count += 1
        self.last.append([loss, gradient])
        if self.count <= _IN_A_ROW:
            self.loss, self.gradient = max(self.loss, abs(loss)), max(self.gradient, gradient)
        if self.count & (self.count - 1):
            return None
        before, self.half = self.half, max(-loss, 0.0)
        known = self.loss > 0 and self.gradient > 0
        beyond = known and all(
            each < -_FACTOR * self.loss and norm > _FACTOR * self.gradient for each, norm in self.last
        )
        if self.raised or not beyond or not 0 < before * _FASTER < self.half:
            return None
        self.raised = True
        why = (
            f"the loss is {loss:.4g}, and was within {self.loss:.4g} of zero at first, while the norm of the gradients "
            f"grew from {self.gradient:.4g} to {gradient:.4g}: a term of the loss has no lower bound; look at its sign"
        )
        return Alarm(step=number, rule=UNBOUNDED, why=why, value=loss, limit=-_FACTOR * self.loss)

    def to_json(self) -> dict[str, Any]:
        """Returns everything that it remembers, for `restore`."""
        return {
            "count": self.count, "loss": self.loss, "gradient": self.gradient, "half": self.half,
            "last": list(self.last), "raised": self.raised,
        }  # fmt: skip

    def restore(self, found: Mapping[str, Any]) -> None:
        """Remembers what `to_json` returned."""
        self.count, self.loss, self.gradient = found["count"], found["loss"], found["gradient"]
        self.half, self.raised = found["half"], found["raised"]
        self.last = deque(found["last"], _IN_A_ROW)
