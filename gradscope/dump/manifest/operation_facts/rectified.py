"""Defines a rectifier, or another function of limited results, whose results are the logits of a loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

from gradscope.dump.manifest.operation_facts.saturation import BoundedName

#: What makes logits of a limited range.
LogitsMaker: TypeAlias = Literal["rectifier", "softplus", "sigmoid", "tanh"]
LOGITS_MAKERS: Final[tuple[LogitsMaker, ...]] = get_args(LogitsMaker)

_FOLLOWS: Final = {
    "rectifier": "none of it below 0: an example whose logits are all 0 passes no gradient",
    "softplus": "none of it below 0: no class is made less likely than by a logit of 0",
    "sigmoid": "all of it between 0 and 1: no class is made more than 2.8 times as likely as another",
    "tanh": "all of it between -1 and 1: no class is made more than 7.4 times as likely as another",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RectifiedLogits:
    """A `RectifiedLogits` is a maximum with zero, or another function of limited results, that a loss takes for logits.

    Attributes:
        function: The function whose logarithm the loss takes: `softmax` or `sigmoid`.
        source: `file:line` in the user's code; None where unknown.
        by: What makes the logits: `rectifier`, `softplus`, `sigmoid` or `tanh`.
    """

    function: BoundedName
    source: str | None = None
    by: LogitsMaker = "rectifier"

    @property
    def is_bounded(self) -> bool:
        """Whether the logits have limits on both sides."""
        return self.by in ("sigmoid", "tanh")

    @property
    def sentence(self) -> str:
        """What is unusual, and what follows."""
        what = f"a {self.by}" if self.source is None else f"the {self.by} at {self.source}"
        follows = _FOLLOWS[self.by]
        if self.function == "sigmoid":
            follows = "none of it below 0: no probability is below 0.5"
            if self.by == "tanh":
                follows = "all of it between -1 and 1: no probability is below 0.26 or above 0.74"
        return f"the {self.function} of the loss takes for logits what {what} returns, {follows}"
