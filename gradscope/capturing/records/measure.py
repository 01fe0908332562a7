"""Measuring: from pending tensors to records, with the power of each for the layers it is an input or output of."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import jax
import numpy as np

from gradscope import naming
from gradscope.arrays.digest import content_hash
from gradscope.arrays.dtypes import is_floating, itemsize
from gradscope.capturing.execution.observation import Piece
from gradscope.capturing.records.pending_tensors import PendingTensor
from gradscope.dump.record import Record, Shard
from gradscope.instrument.rewriting.core_statistics import core_numbers
from gradscope.protocols import implements
from gradscope.stats.core_tier import stats_from_core
from gradscope.stats.power import Power, power_of, together
from gradscope.stats.tensor_stats import TensorStats, tensor_stats
from gradscope.stats.units import activation_stats
from gradscope.tracing.user_frames import user_code


class Measured(NamedTuple):
    """A tensor with its numbers: records with arrays as they were computed, and its power, None without an array."""

    pending: PendingTensor
    records: tuple[Record, ...]
    power: Power | None


class Reading(Protocol):
    """A `Reading` makes statistics of observations, and chooses what of them is kept: two steps, for two threads.

    Measuring is many short calls into NumPy; what it takes to keep a tensor is few long ones. So the one does not make
    the other wait for the interpreter lock.
    """

    def measured(self, pending: PendingTensor) -> Measured:
        """Returns the records of a tensor, with its statistics but for the hash."""
        ...

    def kept(self, record: Record) -> Record:
        """Returns one of those records as it is written: with the hash of its array, and with what is kept of that."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorReading:
    """A `TensorReading` reads complete tensors and computes every statistic on the host.

    Attributes:
        keep: Whether the records carry the tensors; a stats-only dump does without.
        exact_quantiles: Whether quantiles come from the sorted values and not from the histogram.
        widen: Whether floating-point tensors narrower than float32 are kept as float32.
    """

    keep: bool = True
    exact_quantiles: bool = False
    widen: bool = False

    @implements(Reading)
    def measured(self, pending: PendingTensor) -> Measured:
        if pending.observation is None:
            return Measured(pending, pending.records, None)
        with user_code("reading what was captured"):
            array = pending.observation.whole()
        stats = self.statistics(pending, array)
        own = tuple(replace(record, stats=stats.to_json(), array=array) for record in pending.records[:1])
        return Measured(pending, (*own, *pending.records[1:]), power_of(stats))

    @implements(Reading)
    def kept(self, record: Record) -> Record:
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

    def statistics(self, pending: PendingTensor, array: np.ndarray) -> TensorStats:
        """The full statistics of an array, but for its hash."""
        if pending.family == naming.ACTIVATION and pending.records:
            primitive = pending.records[0].site.primitive
            return activation_stats(array, primitive=primitive, exact_quantiles=self.exact_quantiles, hashed=False)
        return tensor_stats(array, exact_quantiles=self.exact_quantiles, hashed=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardReading:
    """A `ShardReading` reads the shards of tensors that this process holds.

    The tensor's own record then only outlines it; a record per shard carries numbers and elements.

    Attributes:
        reading: Reads a shard.
    """

    reading: TensorReading

    @implements(Reading)
    def measured(self, pending: PendingTensor) -> Measured:
        """Returns the records of a tensor and of its shards in this process, with full statistics of each."""
        if pending.observation is None:
            return Measured(pending, pending.records, None)
        with user_code("reading what was captured"):
            pieces = list(pending.observation.pieces())
        stats = [self.reading.statistics(pending, piece.array) for piece in pieces]
        outline = tuple(self._outlined(record) for record in pending.records)
        shards = [
            self._shard(record, piece, each)
            for record in pending.records[:1] for piece, each in zip(pieces, stats, strict=True)
        ]  # fmt: skip
        return Measured(pending, (*outline, *shards), together(map(power_of, stats)))

    @implements(Reading)
    def kept(self, record: Record) -> Record:
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
    """A `CoreReading` reads the vectors that a step computed in the place of tensors; no record carries an array."""

    @implements(Reading)
    def measured(self, pending: PendingTensor) -> Measured:
        if pending.observation is None:
            return Measured(pending, pending.records, None)
        numbers = core_numbers(pending.observation.whole())
        # The numbers are those of whole tensors in every process, and count once.
        power = Power(numbers.rms**2 * numbers.finite, numbers.finite) if jax.process_index() == 0 else None
        records = pending.records
        if records:
            stats = stats_from_core(records[0].shape, records[0].dtype, numbers)
            records = (replace(records[0], stats=stats.to_json()), *records[1:])
        return Measured(pending, records, power)

    @implements(Reading)
    def kept(self, record: Record) -> Record:
        return record
