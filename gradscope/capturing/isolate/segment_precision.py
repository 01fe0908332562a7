"""`SegmentPrecision` returns the dtype in which an isolated run computes a tensor.

What a layer reads is the reference's, whatever that was computed in. So the dtypes of the segments count that make a
tensor: of what they read, as a compiler may hand on more digits than a value has, and, where the program is meant to
compute in fewer digits, of what is computed in them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

from gradscope.capturing.isolate.boundaries import Boundaries
from gradscope.comparison.judging.limits.noise import Precision
from gradscope.comparison.precision import coarser, dtype_class
from gradscope.dump.manifest.manifest import Entry
from gradscope.naming import key_of
from gradscope.tracing.jaxpr.frames import OPERAND, variable_of
from gradscope.tracing.jaxpr.iterations import ValueAt
from gradscope.tracing.layers.narrow_layers import NarrowLayers
from gradscope.tracing.tracer import Trace


class SegmentPrecision(Precision):
    """`SegmentPrecision` returns the coarsest dtype of the segments that make each tensor.

    Args:
        trace: The candidate's loss.
        boundaries: The ends of its segments.
        made_by: The boundaries that make each tensor, by key.
        is_mixed: Whether most of the program computes in fewer digits than it returns.
        at_most: The dtype in which everything was computed that is not of a coarser one; None where that is not known.
    """

    def __init__(
        self,
        trace: Trace,
        boundaries: Boundaries,
        made_by: Mapping[str, Sequence[ValueAt]],
        *,
        is_mixed: bool,
        at_most: str | None,
    ) -> None:
        self._frames = {frame.key: frame for frame in trace.root.walk()}
        self._segments = boundaries.pinned.segments(trace.root)
        self._narrow = NarrowLayers(trace.root)
        self._made_by = made_by
        self._is_mixed = is_mixed
        self._at_most = at_most
        self._known: dict[ValueAt, str] = {}

    def dtype(self, entry: Entry) -> str:
        """Returns the coarsest dtype that went into a tensor; its own where that holds no floating-point numbers."""
        if dtype_class(entry.dtype) not in ("float", "complex"):
            return entry.dtype
        inside = map(self._of_segment, self._made_by.get(key_of(entry.family, entry.name), ()))
        found = [*inside, *([] if self._at_most is None else [self._at_most])]
        return reduce(coarser, found, entry.dtype) if found else entry.dtype

    def _of_segment(self, end: ValueAt) -> str:
        if end not in self._known:
            segment = self._segments.segment(end)
            computed = map(self._computed_in, segment.made if self._is_mixed else ())
            self._known[end] = reduce(coarser, (*map(self._own, segment.read), *computed), "float64")
        return self._known[end]

    def _own(self, value_at: ValueAt) -> str:
        value = value_at.value
        return str(variable_of(self._frames[value.frame], value).aval.dtype)

    def _computed_in(self, value_at: ValueAt) -> str:
        """Returns the dtype of a value, or the coarser one that the equation computes in which makes it."""
        own, value = self._own(value_at), value_at.value
        number = value.equation
        narrow = None if number == OPERAND else self._narrow.of_equation(self._frames[value.frame], number)
        return own if narrow is None else coarser(own, narrow)
