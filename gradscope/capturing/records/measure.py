"""From drafts to records: the statistics of each tensor, and its power for the layers it goes in and out of."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import jax
import numpy as np

from gradscope import naming
from gradscope.arrays.digest import content_hash
from gradscope.arrays.dtypes import is_floating, itemsize
from gradscope.capturing.execution.observation import Piece
from gradscope.capturing.records.drafts import Draft
from gradscope.dump.record import Record, Shard
from gradscope.instrument.rewriting.core_statistics import core_numbers
from gradscope.stats.core_tier import stats_from_core
from gradscope.stats.power import Power, power_of, together
from gradscope.stats.tensor_stats import TensorStats, tensor_stats
from gradscope.stats.units import activation_stats
from gradscope.tracing.user_frames import user_code


class Measured(NamedTuple):
    """A draft with its numbers: the records, with tensors as they were computed; the power, None without a tensor."""

    draft: Draft
    records: tuple[Record, ...]
    power: Power | None


class Reading(Protocol):
    """How observations become statistics, and what of them is kept: two steps, for two threads.

    Measuring is many short calls into NumPy; what it takes to keep a tensor is few long ones. So the one does not make
    the other wait for the interpreter lock.
    """

    def measured(self, draft: Draft) -> Measured:
        """The records of a draft, with statistics of its tensors but for the hash."""
        ...

    def kept(self, record: Record) -> Record:
        """A record of those as it is written: with the hash of its tensor, and with what is kept of that."""
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

    def measured(self, draft: Draft) -> Measured:
        """The records of a draft, with full statistics."""
        if draft.observation is None:
            return Measured(draft, draft.records, None)
        with user_code("reading what was captured"):
            array = draft.observation.whole()
        stats = self.statistics(draft, array)
        own = tuple(replace(record, stats=stats.to_json(), array=array) for record in draft.records[:1])
        return Measured(draft, (*own, *draft.records[1:]), power_of(stats))

    def kept(self, record: Record) -> Record:
        """A record as it is written."""
        array = record.array
        if array is None:
            return record
        stats = {**record.stats, "hash": content_hash(array)}
        if not self.keep:
            return replace(record, stats=stats, array=None)
        dtype = self.kept_dtype(record.dtype)
        stored = array if dtype == record.dtype else array.astype(dtype)
        return replace(record, stats=stats, array=stored, dtype=dtype)

    def kept_dtype(self, dtype: str) -> str:
        """The dtype in which an array of a dtype is kept."""
        narrow = is_floating(dtype) and itemsize(dtype) < np.dtype(np.float32).itemsize
        return "float32" if self.keep and self.widen and narrow else dtype

    def statistics(self, draft: Draft, array: np.ndarray) -> TensorStats:
        """The full statistics of an array, but for its hash."""
        if draft.family == naming.ACTIVATION and draft.records:
            primitive = draft.records[0].site.primitive
            return activation_stats(array, primitive=primitive, exact_quantiles=self.exact_quantiles, hashed=False)
        return tensor_stats(array, exact_quantiles=self.exact_quantiles, hashed=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardReading:
    """Reads the pieces of tensors that this process holds.

    A draft's own record then only outlines the tensor; a record per piece carries numbers and elements.

    Attributes:
        reading: How a piece is read.
    """

    reading: TensorReading

    def measured(self, draft: Draft) -> Measured:
        """The records of a draft and of its pieces, with full statistics of each."""
        if draft.observation is None:
            return Measured(draft, draft.records, None)
        with user_code("reading what was captured"):
            pieces = list(draft.observation.pieces())
        stats = [self.reading.statistics(draft, piece.array) for piece in pieces]
        outline = tuple(self._outlined(record) for record in draft.records)
        shards = [
            self._shard(record, piece, each)
            for record in draft.records[:1] for piece, each in zip(pieces, stats, strict=True)
        ]  # fmt: skip
        return Measured(draft, (*outline, *shards), together(map(power_of, stats)))

    def kept(self, record: Record) -> Record:
        """A record as it is written."""
        return self.reading.kept(record)

    def _outlined(self, record: Record) -> Record:
        return replace(record, dtype=self.reading.kept_dtype(record.dtype))

    def _shard(self, record: Record, piece: Piece, stats: TensorStats) -> Record:
        axes = len(record.shape)  # the data of PRNG keys has one more
        shape = piece.array.shape[:axes]
        shard = Shard(of=record.name, whole=record.shape, start=piece.start[:axes])
        return replace(
            record, name=shard.name(shape), shape=shape, stats=stats.to_json(), shard=shard, array=piece.array
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreReading:
    """Reads the vectors that a step computed in the place of tensors; no record carries an array."""

    def measured(self, draft: Draft) -> Measured:
        """The records of a draft, with core statistics."""
        if draft.observation is None:
            return Measured(draft, draft.records, None)
        numbers = core_numbers(draft.observation.whole())
        # The numbers are those of whole tensors in every process, and count once.
        power = Power(numbers.rms**2 * numbers.finite, numbers.finite) if jax.process_index() == 0 else None
        records = draft.records
        if records:
            stats = stats_from_core(records[0].shape, records[0].dtype, numbers)
            records = (replace(records[0], stats=stats.to_json()), *records[1:])
        return Measured(draft, records, power)

    def kept(self, record: Record) -> Record:
        """The record: of a tensor nothing is kept."""
        return record
