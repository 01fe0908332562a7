"""Data parallelism spreads the examples of a batch over devices, and has everything else on each of them.

The program of a step is the one of a single device; XLA partitions it and adds the sums over devices. So what couples
examples, batch norm among them, still sees the whole batch, and all numbers agree with those of one device up to the
order of sums.

The devices may be those of several processes. Each of these makes the whole batch, and puts its part of it on its own
devices.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from gradscope import naming
from gradscope.capturing.records.example_gradients import example_count
from gradscope.errors import UsageError
from gradscope.tracing.leaves import changed, leaves_of

_AXIS = "examples"


class Placement:
    """A `Placement` puts the arrays of a run on its devices.

    Args:
        devices: Over how many devices of each process the examples are spread; None for all.
        batch: The shapes of a batch.
        batch_size: Its examples; None where its leaves state it.

    Attributes:
        everywhere: The sharding of an array that is whole on each of the devices.
        count: The number of devices, of all processes.

    Raises:
        UsageError: There are fewer devices, no axis of the batch is that of examples, or they do not divide evenly.
    """

    def __init__(self, devices: int | None, batch: Any, batch_size: int | None) -> None:
        local = jax.local_devices()
        if devices is not None and devices > len(local):
            raise UsageError(
                f"--devices {devices}: here are {len(local)} ({local[0].platform})",
                hint=f"set JAX_NUM_CPU_DEVICES={devices} to split a CPU, or give fewer",
            )
        self._examples = example_count(leaves_of(batch, naming.INPUT), batch_size)
        chosen = _of_each_process(devices)
        if self._examples % len(chosen):
            raise UsageError(
                f"{self._examples} examples do not divide among {len(chosen)} devices",
                hint="make the batch a multiple of the number of devices",
            )
        self.count = len(chosen)
        mesh = Mesh(np.array(chosen), (_AXIS,))
        self.everywhere = NamedSharding(mesh, PartitionSpec())
        self._spread = NamedSharding(mesh, PartitionSpec(_AXIS))

    def replicated(self, tree: Any) -> Any:
        """Returns a pytree whose arrays are whole on each device.

        Raises:
            UsageError: The model itself has spread one of them over the devices of several processes.
        """
        return jax.tree_util.tree_map(lambda leaf: placed(leaf, self.everywhere), tree)

    def spread(self, batch: Any) -> Any:
        """Returns a batch whose examples are spread over the devices; a leaf without that axis is whole on each."""
        return jax.tree_util.tree_map(lambda leaf: placed(leaf, self._of(leaf)), batch)

    def shapes(self, variables: Any, batch: Any) -> tuple[Any, Any]:
        """Returns the shapes of variables that are whole on each device, and of a batch that is spread over them."""
        everywhere = jax.tree_util.tree_map(lambda leaf: changed(leaf, sharding=self.everywhere), variables)
        return everywhere, jax.tree_util.tree_map(lambda leaf: changed(leaf, sharding=self._of(leaf)), batch)

    def _of(self, leaf: Any) -> NamedSharding:
        """Returns the sharding of a leaf of a batch."""
        return self._spread if leaf.shape[:1] == (self._examples,) else self.everywhere


def placed(leaf: Any, sharding: Any) -> Any:
    """Returns an array, whole in this process, as its part of one that may be spread over several processes.

    Raises:
        UsageError: It is spread over them already.
    """
    if sharding.is_fully_addressable:
        return jax.device_put(leaf, sharding)
    if not getattr(leaf, "is_fully_addressable", True):
        raise UsageError(
            "the model spreads its own arrays over the devices of several processes",
            hint="leave that to --distributed: init and batch return arrays that are whole in every process",
        )
    parts = sharding.addressable_devices_indices_map(leaf.shape).items()
    return jax.make_array_from_single_device_arrays(
        leaf.shape, sharding, [jax.device_put(leaf[index], device) for device, index in parts]
    )


def in_this_process(tree: Any) -> Any:
    """Returns a pytree whose arrays are on one device of this process; each of them has to be whole on it."""
    return jax.tree_util.tree_map(lambda leaf: leaf.addressable_data(0), tree)


def _of_each_process(count: int | None) -> list[Any]:
    """Returns the first so many devices of each process, or all."""
    by_process: dict[int, list[Any]] = {}
    for device in jax.devices():
        by_process.setdefault(device.process_index, []).append(device)
    return [device for number in sorted(by_process) for device in by_process[number][:count]]
