"""Data parallelism: the examples of a batch are spread over local devices, and everything else is on each of them.

The program of a step is the one of a single device; XLA partitions it and adds the sums over devices. So what couples
examples, batch norm among them, still sees the whole batch, and all numbers agree with those of one device up to the
order of sums.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from gradscope import naming
from gradscope.capturing.records.example_gradients import example_count
from gradscope.errors import UsageError
from gradscope.tracing.tracer import leaves_of

_AXIS = "examples"


class Placement:
    """Where the arrays of a run are.

    Args:
        devices: Over how many local devices the examples are spread.
        batch: The shapes of a batch.
        batch_size: Its examples; None where its leaves tell.

    Attributes:
        everywhere: The sharding of an array that is whole on each of the devices.

    Raises:
        UsageError: There are fewer devices, no axis of the batch is that of examples, or they do not divide evenly.
    """

    def __init__(self, devices: int, batch: Any, batch_size: int | None) -> None:
        local = jax.local_devices()
        if devices > len(local):
            raise UsageError(
                f"--devices {devices}: here are {len(local)} ({local[0].platform})",
                hint=f"set JAX_NUM_CPU_DEVICES={devices} to split a CPU, or give fewer",
            )
        self._examples = example_count(leaves_of(batch, naming.INPUT), batch_size)
        if self._examples % devices:
            raise UsageError(
                f"{self._examples} examples do not divide among {devices} devices",
                hint="make the batch a multiple of --devices",
            )
        mesh = Mesh(np.array(local[:devices]), (_AXIS,))
        self.everywhere = NamedSharding(mesh, PartitionSpec())
        self._spread = NamedSharding(mesh, PartitionSpec(_AXIS))

    def whole(self, tree: Any) -> Any:
        """Returns a pytree whose arrays are whole on each device."""
        return jax.device_put(tree, self.everywhere)

    def spread(self, batch: Any) -> Any:
        """Returns a batch whose examples are spread over the devices; a leaf without that axis is whole on each."""
        return jax.tree_util.tree_map(
            lambda leaf: jax.device_put(leaf, self._spread if leaf.shape[:1] == (self._examples,) else self.everywhere),
            batch,
        )
