"""Bounded memory: captured in several runs, a model's tensors are those of one run; in float64, to the last digits."""

from __future__ import annotations

import re
from typing import Any

import jax
import numpy as np
import pytest

from gradscope.capture.arguments import Arguments
from gradscope.capture.one_shot import DumpRequest, dump_model
from gradscope.capture.timings import Timings
from gradscope.dump.memory import MemoryDump, MemoryWriter
from gradscope.errors import MachineError
from gradscope.instrument.wanted import Wanted
from gradscope.naming.sizes import parse_size, shown_size
from gradscope.tracing.model import Model
from tests.oracle.zoo import ZOO


@pytest.fixture(autouse=True)
def _in_float64(x64: None) -> None:
    """Where nothing but mistakes makes a difference to be seen."""


def captured(max_memory: int | None) -> tuple[MemoryDump, list[str]]:
    """The scanned transformer's operations and their operands' terms, and what was told before they were captured."""
    case = ZOO["transformer, scanned and checkpointed"]
    variables, batch = case.arguments()
    model = Model(name="transformer", init=lambda _: variables, batch=lambda _key, _size: batch, loss=case.loss)
    arguments = Arguments(
        shapes=jax.eval_shape(lambda: (variables, batch)), make=lambda: (variables, batch), batch_size=2
    )
    told: list[str] = []
    wanted = Wanted(operations=True, operands=True, terms=True)
    request = DumpRequest(wanted=wanted, self_check=True, max_memory=max_memory, tell=told.append)
    writer = MemoryWriter()
    return writer.dump(dump_model(model, arguments, request, writer, Timings())), told


def test_in_several_runs_everything_is_what_it_is_in_one() -> None:
    whole, nothing = captured(None)
    parts, told = captured(250_000)
    assert nothing == []
    assert re.fullmatch(r"[0-9.]+ KiB of tensors are captured in [3-9] runs", told[0])
    assert set(parts.keys()) == set(whole.keys())
    for key in (key for key in whole.keys() if whole.entry(key).absent is None):  # noqa: SIM118 - it is no mapping
        one, other = (np.asarray(dump.array(key), np.float64) for dump in (whole, parts))
        assert np.abs(one - other).max(initial=0) <= 1e-11 * max(np.abs(one).max(initial=0), 1), key
    assert _paths(parts) == _paths(whole)
    assert parts.manifest.ledger.counts() == whole.manifest.ledger.counts()
    assert parts.manifest.self_check is not None
    assert parts.manifest.self_check["beyond_rounding"] == []


def _paths(dump: MemoryDump) -> Any:
    return [(layer.path, layer.inputs, layer.outputs) for layer in dump.manifest.layers]


def test_what_does_not_fit_even_so_is_refused_before_it_runs() -> None:
    with pytest.raises(MachineError, match=r"one run of the model needs .* above the 1.0 KiB of --max-memory"):
        captured(1024)


@pytest.mark.parametrize(
    ("text", "size"), [("4GiB", 4 << 30), ("500MB", 500_000_000), ("1.5k", 1500), ("7", 7), (" 2 mib ", 2 << 20)]
)
def test_sizes_are_written_as_people_write_them(text: str, size: int) -> None:
    assert parse_size(text) == size


def test_sizes_are_shown_short() -> None:
    assert [shown_size(size) for size in (7, 1536, 31 << 30, 5 << 40)] == ["7 B", "1.5 KiB", "31.0 GiB", "5.0 TiB"]
