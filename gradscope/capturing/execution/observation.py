"""Observations on the host: the whole of one, or the pieces of it that this process holds.

Under `jax.distributed` an array may lie on the devices of several processes, and none of them can see all of it. A
*piece* is a shard on a device of this process of which no other device is to write a copy. An array that a process has
for itself alone is taken to be the same in every process, and is the first one's to write.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils

from gradscope.errors import UsageError
from gradscope.instrument.observing_program import Observed
from gradscope.instrument.taps import whole_tensor


class Piece(NamedTuple):
    """A box of an observation: where it begins along each axis, and its elements."""

    start: tuple[int, ...]
    array: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """An array that a run handed out, or one turn of it.

    Attributes:
        value: The array, on the device or the host.
        at: Where the turn lies along its leading axes; () for all of it.
    """

    value: Any
    at: tuple[int, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Bytes of all of it."""
        value = whole_tensor(self.value)
        return math.prod(value.shape[len(self.at) :]) * value.dtype.itemsize

    def whole(self) -> np.ndarray:
        """All of it; of typed PRNG keys their data.

        Raises:
            UsageError: It lies on the devices of several processes.
        """
        value = whole_tensor(self.value)
        if not is_whole_here(value):
            raise UsageError(
                "the tensors of this run are spread over several processes, and a dump in memory holds whole ones",
                hint="observe with gradscope.value_and_grad, and write with gradscope.save",
            )
        return np.asarray(value)[self.at]

    def pieces(self) -> Iterator[Piece]:
        """The pieces that this process is to write."""
        value = whole_tensor(self.value)
        if is_whole_here(value) or value.size == 0:
            if jax.process_index() == 0:
                array = np.asarray(value)[self.at] if value.size else np.empty(value.shape[len(self.at) :], value.dtype)
                yield Piece((0,) * array.ndim, array)
            return
        for shard in value.addressable_shards:
            start = tuple(each.start or 0 for each in shard.index)
            here = tuple(index - first for index, first in zip(self.at, start, strict=False))
            inside = all(0 <= index < size for index, size in zip(here, shard.data.shape, strict=False))
            if shard.replica_id == 0 and inside:
                yield Piece(start[len(self.at) :], np.asarray(shard.data)[here])


def gathered(tree: Any) -> Any:
    """A pytree of small arrays with every array whole in every process; all of them have to call it."""
    return jax.tree_util.tree_map(
        lambda value: value if is_whole_here(value) else multihost_utils.process_allgather(value, tiled=True), tree
    )


def with_whole_facts(observed: Observed) -> Observed:
    """What a run handed out, the loss and what branches and loops did whole in every process. See `gathered`."""
    captured = observed.captured
    loss, executed, turns = gathered((observed.loss, captured.executed, captured.turns))
    return observed._replace(loss=loss, captured=captured._replace(executed=executed, turns=turns))


def is_whole_here(value: Any) -> bool:
    """Whether this process can see all of an array."""
    return not isinstance(value, jax.Array) or value.is_fully_addressable or value.is_fully_replicated
