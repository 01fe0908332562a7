"""The sizes of tensors are their root mean squares, or l2 norms, by the statistics in a dump."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from gradscope.comparison.precision import dtype_class
from gradscope.dump.manifest.json_text import as_float
from gradscope.dump.manifest.manifest import Entry

#: The most shapes of the tensors of one layer that are looked at: a file may have a layer of a million.
_MOST_SHAPES: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class TermSum:
    """TermSum stores what is known of the sums that the elements of a tensor are.

    Attributes:
        terms: The number of terms of each.
        scale: The size of a term.
        is_of_products: Whether the terms are products, which are added in float32 everywhere.
    """

    terms: int
    scale: float
    is_of_products: bool = False

    @property
    def expected(self) -> float:
        """The root mean square of the elements where the terms do not cancel."""
        return math.sqrt(self.terms) * self.scale


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSizes:
    """TensorSizes stores the root mean squares of some tensors.

    Attributes:
        by_shape: The largest that is finite, by shape; of many shapes, those of the largest ones.
        largest: The largest of all; None where there are no tensors.
        largest_float: The largest of the floating-point tensors; 0 where there are none.
        exact: Whether any tensor is of another type.
    """

    by_shape: Mapping[tuple[int, ...], float]
    largest: float | None
    largest_float: float
    exact: bool

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> TensorSizes:
        """Returns the sizes of some tensors."""
        sizes = [(entry.shape, rms_of(entry), dtype_class(entry.dtype) == "float") for entry in entries]
        by_shape: dict[tuple[int, ...], float] = {}
        for shape, rms, _ in sizes:
            if math.isfinite(rms):
                by_shape[shape] = max(by_shape.get(shape, 0.0), rms)
        if len(by_shape) > _MOST_SHAPES:
            by_shape = dict(sorted(by_shape.items(), key=lambda each: each[1])[-_MOST_SHAPES:])
        return cls(
            by_shape=by_shape,
            largest=max((rms for _, rms, _ in sizes), default=None),
            largest_float=max((rms for _, rms, is_float in sizes if is_float), default=0.0),
            exact=not all(is_float for _, _, is_float in sizes),
        )


def rms_of(entry: Entry) -> float:
    """Returns the root mean square of a tensor; 0 where it is not known."""
    value = entry.stats.get("rms")
    if not isinstance(value, int | float | str):
        return 0.0
    return as_float(value)


def l2_of(entry: Entry) -> float:
    """Returns the l2 norm of a tensor; 0 where it is not known."""
    return rms_of(entry) * math.sqrt(math.prod(entry.shape))


def shared_size(shape: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Returns the largest size that is in both shapes: the features of a kernel that the other tensor has, too.

    Of empty tensors it is 1, as of those that share none.
    """
    return max((size for size in shape if size in other), default=0) or 1
