"""Defines a rectifier whose results are the logits of a loss."""

from __future__ import annotations

from dataclasses import dataclass

from gradscope.dump.manifest.operation_facts.saturation import BoundedName


@dataclass(frozen=True, slots=True, kw_only=True)
class RectifiedLogits:
    """A `RectifiedLogits` is a maximum with zero that a loss takes for logits.

    Attributes:
        function: The function whose logarithm the loss takes: `softmax` or `sigmoid`.
        source: `file:line` in the user's code; None where unknown.
    """

    function: BoundedName
    source: str | None = None

    @property
    def sentence(self) -> str:
        """What is unusual, and what follows."""
        what = "a rectifier" if self.source is None else f"the rectifier at {self.source}"
        follows = "an example whose logits are all 0 passes no gradient"
        if self.function == "sigmoid":
            follows = "no probability is below 0.5"
        return f"the {self.function} of the loss takes for logits what {what} returns, none of it below 0: {follows}"
