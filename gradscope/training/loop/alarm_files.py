"""Saves the state before a step and the step's batch, and a dump of it that says where a NaN in it began."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from gradscope import naming
from gradscope.capturing.dump_model import DumpRequest, dump_model
from gradscope.capturing.execution.arguments import Arguments
from gradscope.capturing.records.distributed import is_shared
from gradscope.capturing.records.measure import TensorReading
from gradscope.capturing.timings import Timings
from gradscope.dump.manifest.manifest import Manifest, RunFacts
from gradscope.dump.record import Json
from gradscope.dump.storage.storage_errors import machine_errors
from gradscope.dump.writer import DumpWriter
from gradscope.tracing.leaves import leaves_of
from gradscope.tracing.loading.model import Model
from gradscope.training.loop.placement import in_this_process
from gradscope.training.loop.state_files import save_state
from gradscope.training.recording.array_records import record_of
from gradscope.training.state import TrainState


def save_step(
    model: Model, state: TrainState, batch: Any, *, folder: Path, facts: Mapping[str, Json], timings: Timings
) -> Manifest:
    """Saves a step: the state before it, its batch, and a dump with statistics and origins.

    Args:
        model: The model.
        state: The state before the step.
        batch: Its batch, whole on each device.
        folder: Where to; it is made.
        facts: What the manifests state about the run.
        timings: Receives the seconds of each phase of the dump.

    Returns:
        The manifest of the dump.

    Raises:
        MachineError: The disk is full or fails.
        ModelError: The model failed.
    """
    with machine_errors("write to", folder):
        folder.mkdir(exist_ok=True)
    save_state(folder / "state.npz", state, None, facts)
    _save_batch(folder / "batch.npz", batch, facts)
    return save_dump(model, state, batch, path=folder / "dump.npz", facts=facts, timings=timings, tensors=False)


def save_dump(
    model: Model, state: TrainState, batch: Any, *, path: Path, facts: Mapping[str, Json], timings: Timings,
    tensors: bool = True,
) -> Manifest:  # fmt: skip
    """Saves a dump of the loss of a step, as `gradscope dump` would; of several processes, one runs it by itself.

    Args:
        model: The model.
        state: The state before the step.
        batch: Its batch, whole on each device.
        path: The file; one that exists is replaced.
        facts: What the manifest states about the run.
        timings: Receives the seconds of each phase.
        tensors: Whether it has the tensors, too, beside their statistics.

    Raises:
        MachineError: The disk is full or fails.
        ModelError: The model failed.
    """
    request = DumpRequest(reading=TensorReading(keep=tensors), facts=dict(facts))
    values = (state.variables, batch)
    arguments = Arguments.of(*(in_this_process(values) if is_shared() else values))
    with DumpWriter(path, force=True) as writer:
        return dump_model(model, arguments, request, writer, timings)


def _save_batch(path: Path, batch: Any, facts: Mapping[str, Json]) -> None:
    leaves = zip(leaves_of(batch, naming.INPUT), jax.tree_util.tree_leaves(batch), strict=True)
    with DumpWriter(path, force=True) as writer:
        for leaf, array in leaves:
            writer.add(record_of(naming.key_of(naming.INPUT, leaf.name), array))
        writer.commit(RunFacts(provenance=facts))
