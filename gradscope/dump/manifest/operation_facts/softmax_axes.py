"""Defines a softmax whose weights are added up over another axis than the one over which they sum to 1."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftmaxAxes:
    """A `SoftmaxAxes` is a softmax over some axes, by whose shares a product of matrices weights along other axes.

    Attributes:
        shape: The shape of the shares.
        over: The axes over which they sum to 1.
        summed: The axes over which the product adds up what it weights by them.
        source: `file:line` in the user's code; None where unknown.
    """

    shape: tuple[int, ...]
    over: tuple[int, ...]
    summed: tuple[int, ...]
    source: str | None = None

    @property
    def sentence(self) -> str:
        """Over which axes it is what."""
        what = "a softmax" if self.source is None else f"the softmax at {self.source}"
        over, summed = _axes(self.over), _axes(self.summed)
        return f"{what} is over {over} of {list(self.shape)}, and what its shares weight is added up over {summed}"


def _axes(numbers: tuple[int, ...]) -> str:
    return f"{'axis' if len(numbers) == 1 else 'axes'} {' and '.join(map(str, numbers))}"
