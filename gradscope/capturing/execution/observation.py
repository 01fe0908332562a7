"""Observations are copied to the host in full, or as the shards that this process writes.

Under `jax.distributed` an array may be spread over the devices of several processes, and none of them can read all of
it. Then each process writes the shards on its own devices of which no other device writes a copy (`replica_id == 0`).
An array that is not spread over processes is the same in every process, and the first process writes it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import SingleDeviceSharding

from gradscope.errors import UsageError
from gradscope.instrument.observing_program import Observed
from gradscope.instrument.taps import full_tensor

#: JAX's name for memory of the host that a device writes by itself.
_PINNED: Final = "pinned_host"


class LocalShard(NamedTuple):
    """A `LocalShard` is a box of an observation: the index at which it starts along each axis, and its elements."""

    start: tuple[int, ...]
    array: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """An `Observation` is an array that a run returned, or one iteration of it.

    Attributes:
        value: The array, on the device or the host.
        at: The iteration's index along the leading axes; () for the full array.
    """

    value: Any
    at: tuple[int, ...] = ()

    @property
    def size_bytes(self) -> int:
        """The bytes of the full array."""
        value = full_tensor(self.value)
        return math.prod(value.shape[len(self.at) :]) * value.dtype.itemsize

    def under_way(self) -> Observation:
        """Returns the observation with its elements on their way to the host, where its array is on another device.

        An array keeps the copy that the host has read of it, and all arrays of a run are there until the last is read.
        So it is read through an array of its own, and in memory that the device writes by itself where there is such
        memory: on an H100 that was ten times as fast.
        """
        value = full_tensor(self.value)
        if not isinstance(value, jax.Array) or len(value.devices()) > 1 or not value.size:
            return self
        (device,) = value.devices()
        if device.platform == "cpu":
            return self
        own = _element(value, np.array(self.at, np.int32)) if self.at else value
        if any(memory.kind == _PINNED for memory in device.addressable_memories()):
            own = jax.device_put(own, SingleDeviceSharding(device, memory_kind=_PINNED))
        else:
            own = own if self.at else own.copy()
            own.copy_to_host_async()
        return Observation(value=own)

    def full(self) -> np.ndarray:
        """Returns the full array on the host; for typed PRNG keys, their data.

        Raises:
            UsageError: It is spread over the devices of several processes.
        """
        value = full_tensor(self.value)
        if not is_readable_here(value):
            raise UsageError(
                "the tensors of this run are spread over several processes, and a dump in memory holds full ones",
                hint="observe with gradscope.value_and_grad, and write with gradscope.save",
            )
        return np.asarray(value)[self.at]

    def local_shards(self) -> Iterator[LocalShard]:
        """Yields the shards that this process writes."""
        value = full_tensor(self.value)
        if is_readable_here(value) or value.size == 0:
            if jax.process_index() == 0:
                array = np.asarray(value)[self.at] if value.size else np.empty(value.shape[len(self.at) :], value.dtype)
                yield LocalShard((0,) * array.ndim, array)
            return
        for shard in value.addressable_shards:
            start = tuple(each.start or 0 for each in shard.index)
            here = tuple(index - first for index, first in zip(self.at, start, strict=False))
            inside = all(0 <= index < size for index, size in zip(here, shard.data.shape, strict=False))
            if shard.replica_id == 0 and inside:
                yield LocalShard(start[len(self.at) :], np.asarray(shard.data)[here])


@jax.jit
def _element(value: Any, at: Any) -> Any:
    """Returns the part of an array at an index along its leading axes, compiled once for all indices."""
    return value[tuple(at)]


def gathered(tree: Any) -> Any:
    """Gathers small arrays, so that every process has each of them in full; every process has to call it."""
    return jax.tree_util.tree_map(
        lambda value: value if is_readable_here(value) else multihost_utils.process_allgather(value, tiled=True), tree
    )


def with_global_facts(observed: Observed) -> Observed:
    """Returns an observation whose loss, executed branches and iteration counts are complete in every process."""
    captured = observed.captured
    loss, executed, iterations = gathered((observed.loss, captured.executed, captured.iterations))
    return observed._replace(loss=loss, captured=captured._replace(executed=executed, iterations=iterations))


def is_readable_here(value: Any) -> bool:
    """Returns whether this process can read all of an array."""
    return not isinstance(value, jax.Array) or value.is_fully_addressable or value.is_fully_replicated
