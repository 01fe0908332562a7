"""Defines how much a random mask inside a model makes zero, as a dropout does."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

#: No dropout of use has a larger rate, and such a share is only kept by chance so many deviations away from it.
LARGEST_RATE: Final = 0.8
_DEVIATIONS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomMask:
    """A `RandomMask` is a mask that the program draws, by which a value inside the model is zero in places.

    Attributes:
        share: The share of its elements for which the value is zero; of a loop, over all iterations.
        elements: How many elements the mask has; of a loop, in all iterations.
        index: Execution index of the mask.
        names: Names of the activations that are zero where the mask makes them so.
        source: `file:line` in the user's code of what applies it; None where unknown.
    """

    share: float
    elements: int
    index: int
    names: tuple[str, ...] = ()
    source: str | None = None

    @property
    def is_beyond_rates(self) -> bool:
        """Whether it drops more than a dropout of any usual rate does, by more than chance."""
        deviation = math.sqrt(LARGEST_RATE * (1 - LARGEST_RATE) / max(self.elements, 1))
        return self.share - LARGEST_RATE > _DEVIATIONS * deviation

    @property
    def sentence(self) -> str:
        """How much it drops, and how a rate is mistaken."""
        what = "a random mask" if self.source is None else f"the random mask at {self.source}"
        return (
            f"{what} makes {self.share:.1%} of the elements zero: the rate of a dropout is the share that is dropped, "
            "0.1 to 0.5 as a rule, and not the share that is kept"
        )
