"""Defines an unusual use of a softmax: by the axes of attention or of a loss, or by the positions that are left out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftmaxUse:
    """A `SoftmaxUse` is a product of matrices that weights by the shares of a softmax, or a loss that reads them.

    Attributes:
        shape: The shape of the shares.
        over: The axes over which they sum to 1; of a loss, that of the examples.
        summed: The axes over which the product adds up what it weights by them; empty of a loss.
        reads: Of shares between the positions of one sequence, the part of those that are not zero of keys before the
            query, at it, and after it; empty where the axes are what is unusual.
        source: `file:line` in the user's code; None where unknown.
    """

    shape: tuple[int, ...]
    over: tuple[int, ...]
    summed: tuple[int, ...]
    reads: tuple[float, ...] = ()
    source: str | None = None

    @property
    def sentence(self) -> str:
        """What is unusual."""
        what = "a softmax" if self.source is None else f"the softmax at {self.source}"
        if not self.reads:
            over = f"{what} is over {_axes(self.over)} of {list(self.shape)}"
            if self.summed:
                return f"{over}, and what its shares weight is added up over {_axes(self.summed)}"
            shared = "it shares out each class among the examples, and not each example among the classes"
            return f"{over}, that of the examples: {shared}"
        places = ("earlier positions", "itself", "later positions")
        read = " and ".join(place for place, share in zip(places, self.reads, strict=True) if share)
        never = " nor ".join(place for place, share in zip(places, self.reads, strict=True) if not share)
        return f"{what} lets a position read {read}, and never {never}"


def _axes(numbers: tuple[int, ...]) -> str:
    return f"{'axis' if len(numbers) == 1 else 'axes'} {' and '.join(map(str, numbers))}"
