"""Measuring makes records of pending tensors, and computes the power of each for the layers around it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import jax
import numpy as np

from gradscope import naming
from gradscope.arrays.digest import content_hash
from gradscope.arrays.dtypes import is_floating, itemsize
from gradscope.capturing.execution.observation import LocalShard
from gradscope.capturing.records.pending_tensors import PendingTensor
from gradscope.dump.record import Record, Shard
from gradscope.instrument.statistics.core_statistics import core_numbers
from gradscope.instrument.statistics.full_statistics import has_full_tier, with_full_tier
from gradscope.protocols import implements
from gradscope.stats.core_tier import stats_from_core
from gradscope.stats.power import Power, combined_power, power_of
from gradscope.stats.tensor_stats import TensorStats, tensor_stats
from gradscope.stats.units import activation_stats
from gradscope.tracing.user_frames import user_code


class Measured(NamedTuple):
    """A `Measured` tensor has its records, with arrays as they were computed, and its power; None without an array."""

    pending: PendingTensor
    records: tuple[Record, ...]
    power: Power | None


class Reading(Protocol):
    """A `Reading` makes statistics of observations, and decides what of them is stored."""

    # Two steps, for two threads beside the writer's: measuring is many short calls into NumPy, and preparing a tensor
    # for storage is a few long ones. Separated, neither makes the other wait for the interpreter lock.

    def measured(self, pending: PendingTensor) -> Measured:
        """Returns the records of a tensor, with its statistics except the hash."""
        ...

    def kept(self, record: Record) -> Record:
        """Returns a record as it is written: with the hash of its array, and with the array if it is kept."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorReading:
    """A `TensorReading` reads complete tensors and computes every statistic on the host.

    Attributes:
        keep: Whether the records have the tensors; a stats-only dump has none.
        exact_quantiles: Whether quantiles come from the sorted values and not from the histogram.
        widen: Whether floating-point tensors narrower than float32 are stored as float32.
    """

    keep: bool = True
    exact_quantiles: bool = False
    widen: bool = False

    @implements(Reading)
    def measured(self, pending: PendingTensor) -> Measured:
        if pending.observation is None:
            return Measured(pending, pending.records, None)
        with user_code("reading what was captured"):
            array = pending.observation.full()
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
        """Returns the dtype in which an array of a dtype is stored."""
        narrow = is_floating(dtype) and itemsize(dtype) < np.dtype(np.float32).itemsize
        return "float32" if self.keep and self.widen and narrow else dtype

    def statistics(self, pending: PendingTensor, array: np.ndarray) -> TensorStats:
        """Returns the full statistics of an array, except its hash."""
        if pending.family == naming.ACTIVATION and pending.records:
            primitive = pending.records[0].site.primitive
            return activation_stats(array, primitive=primitive, exact_quantiles=self.exact_quantiles, hashed=False)
        return tensor_stats(array, exact_quantiles=self.exact_quantiles, hashed=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardReading:
    """A `ShardReading` reads the shards of tensors that this process writes.

    The tensor's own record has its shape and dtype only; a record per shard has statistics and elements.

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
            local_shards = list(pending.observation.local_shards())
        stats = [self.reading.statistics(pending, local_shard.array) for local_shard in local_shards]
        outline = tuple(self._outlined(record) for record in pending.records)
        shards = [
            self._shard(record, local_shard, each)
            for record in pending.records[:1] for local_shard, each in zip(local_shards, stats, strict=True)
        ]  # fmt: skip
        return Measured(pending, (*outline, *shards), combined_power(map(power_of, stats)))

    @implements(Reading)
    def kept(self, record: Record) -> Record:
        return self.reading.kept(record)

    def _outlined(self, record: Record) -> Record:
        return replace(record, dtype=self.reading.kept_dtype(record.dtype))

    def _shard(self, record: Record, local_shard: LocalShard, stats: TensorStats) -> Record:
        axes = len(record.shape)  # the data of PRNG keys has one more
        shape = local_shard.array.shape[:axes]
        shard = Shard(of=record.name, whole=record.shape, start=local_shard.start[:axes])
        return replace(
            record, name=shard.name(shape), shape=shape, stats=stats.to_json(), shard=shard, array=local_shard.array
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreReading:
    """A `CoreReading` reads vectors of statistics that a step computed in place of tensors; no record has an array."""

    @implements(Reading)
    def measured(self, pending: PendingTensor) -> Measured:
        if pending.observation is None:
            return Measured(pending, pending.records, None)
        vector = pending.observation.full()
        numbers = core_numbers(vector)
        if has_full_tier(vector):
            numbers = with_full_tier(numbers, vector)
        # The numbers are those of complete tensors in every process, and count once.
        power = Power(numbers.rms, numbers.finite) if jax.process_index() == 0 else None
        records = pending.records
        if records:
            stats = stats_from_core(records[0].shape, records[0].dtype, numbers)
            records = (replace(records[0], stats=stats.to_json()), *records[1:])
        return Measured(pending, records, power)

    @implements(Reading)
    def kept(self, record: Record) -> Record:
        return record
