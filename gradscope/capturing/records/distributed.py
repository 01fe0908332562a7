"""The processes of a distributed run write a file each, and wait for each other."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TypeAlias

import jax
from jax.experimental import multihost_utils

from gradscope.capturing.records.measure import Reading, ShardReading, TensorReading
from gradscope.dump.distributed.process_writer import ProcessGroup, ProcessWriter
from gradscope.dump.interfaces import RecordSink
from gradscope.dump.record import Process
from gradscope.dump.writer import DumpWriter
from gradscope.stats import merged_manifest
from gradscope.tracing.user_frames import user_code

#: The writer of a dump, in one process or in one of several.
Writer: TypeAlias = DumpWriter | ProcessWriter


def is_shared() -> bool:
    """Returns whether this process is one of several."""
    return jax.process_count() > 1


def speaks_for_all() -> bool:
    """Returns whether this process reports what all processes did."""
    return jax.process_index() == 0


def dump_writer(path: str | os.PathLike[str], *, force: bool = False, inputs: Iterable[Path] = ()) -> Writer:
    """Returns the writer of a dump: of a file, or under `jax.distributed` of this process's file in a folder.

    Args:
        path: The file or folder.
        force: Whether an existing dump may be replaced.
        inputs: Files that the run reads, which are not replaced in any case.

    Raises:
        UsageError: The path cannot be used, or there is a dump.
        MachineError: Its folder is read-only.
    """
    if not is_shared():
        return DumpWriter(path, force=force, inputs=inputs)
    process = Process(index=jax.process_index(), count=jax.process_count())
    return ProcessWriter(path, ProcessGroup(process=process, barrier=_barrier, merge=merged_manifest), force=force)


def is_part(writer: RecordSink) -> bool:
    """Returns whether a writer gets what this process has of a run of several processes, and not a run of its own."""
    return isinstance(writer, ProcessWriter)


def reading_for(writer: RecordSink, reading: TensorReading) -> Reading:
    """Returns how tensors are read for a writer: in full, or as the shards of this process."""
    return ShardReading(reading=reading) if is_part(writer) else reading


def _barrier() -> None:
    with user_code("waiting for the other processes"):
        multihost_utils.sync_global_devices("gradscope")
