"""From drafts to records: the statistics of each tensor, and its power for the layers it goes in and out of."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np

from gradscope import naming
from gradscope.arrays.dtypes import is_floating, itemsize
from gradscope.capture.drafts import Draft
from gradscope.dump.record import Record
from gradscope.instrument.core import core_numbers
from gradscope.stats.core import stats_from_core
from gradscope.stats.tensor import TensorStats, tensor_stats
from gradscope.stats.units import activation_stats
from gradscope.tracing.userframes import user_code


class Power(NamedTuple):
    """Sum of squares and number of a tensor's finite elements; powers of several tensors add up."""

    sum_of_squares: float
    elements: int


class Measured(NamedTuple):
    """A draft with its numbers: the records to write, and the power, None where there is no tensor."""

    draft: Draft
    records: tuple[Record, ...]
    power: Power | None


class Reading(Protocol):
    """How observations become statistics, and what of them is kept."""

    def __call__(self, draft: Draft) -> Measured:
        """The records of a draft."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorReading:
    """Reads whole tensors: every statistic is computed here, on the host.

    Attributes:
        keep: Whether the records carry the tensors; a stats-only dump does without.
        exact_quantiles: Whether quantiles come from the sorted values and not from the histogram.
        widen: Whether floating-point tensors narrower than float32 are kept as float32.
    """

    keep: bool = True
    exact_quantiles: bool = False
    widen: bool = False

    def __call__(self, draft: Draft) -> Measured:
        """The records of a draft, with full statistics."""
        if draft.fetch is None:
            return Measured(draft, draft.records, None)
        with user_code("reading what was captured"):
            array = draft.fetch()
        stats = self._statistics(draft, array)
        records = draft.records
        if records:
            own = replace(records[0], stats=stats.to_json())
            records = (self._kept(own, array) if self.keep else own, *records[1:])
        return Measured(draft, records, power_of(stats))

    def _kept(self, record: Record, array: np.ndarray) -> Record:
        if self.widen and is_floating(record.dtype) and itemsize(record.dtype) < np.dtype(np.float32).itemsize:
            return replace(record, array=array.astype(np.float32), dtype="float32")
        return replace(record, array=array)

    def _statistics(self, draft: Draft, array: np.ndarray) -> TensorStats:
        if draft.family == naming.ACTIVATION and draft.records:
            primitive = draft.records[0].site.primitive
            return activation_stats(array, primitive=primitive, exact_quantiles=self.exact_quantiles)
        return tensor_stats(array, exact_quantiles=self.exact_quantiles)


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreReading:
    """Reads the vectors that a step computed in the place of tensors; no record carries an array."""

    def __call__(self, draft: Draft) -> Measured:
        """The records of a draft, with core statistics."""
        if draft.fetch is None:
            return Measured(draft, draft.records, None)
        numbers = core_numbers(draft.fetch())
        power = Power(numbers.rms**2 * numbers.finite, numbers.finite)
        records = draft.records
        if records:
            stats = stats_from_core(records[0].shape, records[0].dtype, numbers)
            records = (replace(records[0], stats=stats.to_json()), *records[1:])
        return Measured(draft, records, power)


def power_of(stats: TensorStats) -> Power | None:
    """The power behind a tensor's statistics; None for tensors that have none (integers)."""
    return None if stats.l2 is None else Power(stats.l2**2, stats.finite)
