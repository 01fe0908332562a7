"""A run of a segment starts while the tensors of the one before are written, where the memory allowed holds both."""

from __future__ import annotations

import sys
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradscope import naming
from gradscope.capturing.dump_model import DumpRequest, dump_model
from gradscope.capturing.execution import preparation
from gradscope.capturing.execution.arguments import Arguments
from gradscope.capturing.execution.preparation import Bounds, prepare
from gradscope.capturing.execution.segmented import held_bytes
from gradscope.capturing.timings import Timings
from gradscope.dump.manifest.manifest import Entry, Manifest
from gradscope.dump.record import Record
from gradscope.dump.sources.memory_dump import MemoryDump, MemoryWriter
from gradscope.errors import MachineError, ModelError
from gradscope.instrument.query.capture_spec import CaptureSpec
from gradscope.instrument.query.trace_query import TraceQuery
from gradscope.tracing.loading.model import Model

ARGUMENTS = (jnp.eye(16), jnp.linspace(-1, 1, 1024).reshape(64, 16))
SPEC = CaptureSpec(operations=True)

#: Beside JAX itself, the one holds two runs of the loss with their tensors, the other only one; the runs are equal.
WIDE, TIGHT = Bounds(memory=50_000), Bounds(memory=40_000)


@pytest.fixture(autouse=True)
def _a_small_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds of some kilobytes are too small for a process that has JAX in it."""
    monkeypatch.setattr(preparation, "held_bytes", lambda: 0)


def loss(w: Any, x: Any) -> Any:
    for _ in range(12):
        x = jnp.tanh(x @ w)
    return (x**2).mean()


class Runs:
    """The runs that have begun."""

    def __init__(self) -> None:
        self.count = 0
        self.third = threading.Event()

    def began(self, phase: str) -> None:
        """Count a phase of a capture."""
        self.count += phase == "run"
        if self.count == 3:  # the forward pass, the last segment, the one before
            self.third.set()


class WatchingWriter(MemoryWriter):
    """A writer that, before it adds a record, waits for the third run, or sees that it has not begun."""

    def __init__(self, runs: Runs, *, overlapping: bool) -> None:
        super().__init__()
        self._runs, self._overlapping = runs, overlapping
        self.first: bool | None = None

    def add(self, record: Record) -> Entry:
        """Add a record."""
        if self.first is None:
            self.first = self._runs.third.wait(timeout=20) if self._overlapping else self._runs.third.is_set()
        return super().add(record)


def captured(bounds: Bounds, *, overlapping: bool) -> tuple[MemoryDump, bool | None]:
    """The tensors of the loss, and whether the third run had begun when the first of them was written."""
    runs = Runs()
    writer = WatchingWriter(runs, overlapping=overlapping)
    manifest = dumped(loss, bounds, writer, Timings(runs.began))
    return writer.dump(manifest), writer.first


def dumped(function: Any, bounds: Bounds, writer: MemoryWriter, timings: Timings) -> Manifest:
    """The manifest of a function's dump."""
    model, inputs = Model.of_values("model", function, *ARGUMENTS), Arguments.of(*ARGUMENTS)
    return dump_model(model, inputs, DumpRequest(spec=SPEC, bounds=bounds), writer, timings)


@pytest.mark.slow
def test_a_run_starts_before_the_tensors_of_the_last_are_written_and_computes_the_same() -> None:
    overlapped, together = captured(WIDE, overlapping=True)
    alone, apart = captured(TIGHT, overlapping=False)
    assert (together, apart) == (True, False)
    assert list(overlapped.keys()) != []
    for entry, other in zip(overlapped.manifest.entries, alone.manifest.entries, strict=True):
        assert (entry.family, entry.name, entry.stats) == (other.family, other.name, other.stats)


@pytest.mark.slow
def test_what_two_runs_need_is_counted() -> None:
    model, inputs = Model.of_values("model", loss, *ARGUMENTS), Arguments.of(*ARGUMENTS)
    needs = {
        bounds: prepare(model, inputs, SPEC, TraceQuery(), Timings(), bounds=bounds).program for bounds in (WIDE, TIGHT)
    }
    for program in needs.values():
        assert 1.3 * program.size_bytes < program.overlapped_bytes < 2 * program.size_bytes
        assert Bounds(memory=2 * program.overlapped_bytes).have_room_for(program.overlapped_bytes)


@pytest.mark.slow
def test_no_run_starts_early_where_the_process_has_taken_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "held_bytes", lambda: WIDE.memory // 2)
    assert captured(WIDE, overlapping=False)[1] is False


@pytest.mark.skipif(sys.platform != "linux", reason="no other system states it")
def test_the_memory_of_the_process_is_known() -> None:
    held = held_bytes()
    assert 50 << 20 < held < 100 << 30
    array = np.ones(64 << 20, np.uint8)
    assert held_bytes() >= held + array.nbytes // 2


@pytest.mark.slow
def test_a_run_that_fails_ahead_ends_the_dump_after_the_records_before() -> None:
    calls = 0

    def failing(x: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise OSError("gone")
        return np.asarray(x)

    def fragile(w: Any, x: Any) -> Any:
        x = jnp.tanh(x @ w)
        x = x + jax.lax.stop_gradient(jax.pure_callback(failing, x, x))
        return loss(w, x)

    added: list[str] = []

    class Adding(MemoryWriter):
        def add(self, record: Record) -> Entry:
            added.append(record.family)
            return super().add(record)

    with pytest.raises(ModelError, match="gone"):
        dumped(fragile, WIDE, Adding(), Timings())
    assert len(added) > 50
    assert naming.PARAM_GRAD not in added  # which are complete when all segments have run


def test_a_writer_that_fails_while_a_run_is_made_ends_the_dump() -> None:
    class Full(MemoryWriter):
        def add(self, record: Record) -> Entry:
            raise MachineError(f"no room for {record.name}")

    with pytest.raises(MachineError, match="no room for"):
        dumped(loss, WIDE, Full(), Timings())
