"""Runs that several processes share: what each writes, and how they meet."""

from __future__ import annotations

import os
from typing import TypeAlias

import jax
from jax.experimental import multihost_utils

from gradscope.capturing.records.measure import Reading, ShardReading, TensorReading
from gradscope.dump.distributed.process_writer import ProcessGroup, ProcessWriter
from gradscope.dump.interfaces import RecordSink
from gradscope.dump.record import Process
from gradscope.dump.writer import DumpWriter
from gradscope.stats import merged_manifest

#: What writes a dump, in one process or in one of several.
Writer: TypeAlias = DumpWriter | ProcessWriter


def is_shared() -> bool:
    """Whether this process is one of several."""
    return jax.process_count() > 1


def speaks_for_all() -> bool:
    """Whether this process is the one that reports what all of them did."""
    return jax.process_index() == 0


def dump_writer(path: str | os.PathLike[str], *, force: bool = False) -> Writer:
    """The writer of a dump: into a file, or under `jax.distributed` into this process's file of a folder.

    Args:
        path: The file or folder.
        force: Whether a dump that is there may be replaced.

    Raises:
        UsageError: The path cannot be used, or there is a dump.
        MachineError: Its folder is read-only.
    """
    if not is_shared():
        return DumpWriter(path, force=force)
    process = Process(index=jax.process_index(), count=jax.process_count())
    return ProcessWriter(path, ProcessGroup(process=process, barrier=_barrier, merge=merged_manifest), force=force)


def reading_for(writer: RecordSink, reading: TensorReading) -> Reading:
    """How tensors are read for a writer: whole, or where several processes write, in the pieces of this one."""
    return ShardReading(reading=reading) if isinstance(writer, ProcessWriter) else reading


def _barrier() -> None:
    multihost_utils.sync_global_devices("gradscope")
