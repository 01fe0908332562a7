"""Eighteen faults planted into modules of Linen, NNX and Equinox are blamed on those calls of those modules."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import gradscope as gs
from gradscope.capturing.isolate.reproducing.reproduction import reproduce
from gradscope.tracing.loading.model import Model
from tests.oracle.isolation.isolating import isolated, wrong
from tests.oracle.isolation.test_reproduction import ran
from tests.zoo.blame.faulty_modules import BATCH, FRAMEWORKS, ITERATIONS, Faults, Made

pytestmark = pytest.mark.usefixtures("compiled_in_a_hurry")

#: Every call with a fault in either pass. Those of one run are far apart: each layer is isolated from the others.
RUNS = (
    {"dense": "forward", "bilinear": "backward", "loop[1]/cell": "forward", "head": "backward"},
    {"dense": "backward", "bilinear": "forward", "loop[1]/cell": "backward", "head": "forward"},
    {"shared": "forward", "loop[*]/cell": "backward", "branch": "forward"},
    {"shared": "backward", "loop[*]/cell": "forward", "branch": "backward"},
    {"shared#2": "forward", "loop[*]/residual": "backward"},
    {"shared#2": "backward", "loop[*]/residual": "forward"},
)


def test_every_call_has_both_faults() -> None:
    planted = [fault for run in RUNS for fault in run.items()]
    assert len(planted) == len(set(planted)) == 18


@cache
def right(framework: str) -> tuple[Callable[[Faults], Made], Any, Any, gs.Dump]:
    """A framework's network, its loss and variables without a fault, and what they give."""
    package, of = FRAMEWORKS[framework]
    pytest.importorskip(package, reason=f"{package} is not installed")
    loss, variables = of({})
    return of, loss, variables, gs.capture(loss, variables, BATCH, origins=False)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_faulty_calls_alone_are_blamed(framework: str) -> None:
    of, _, variables, reference = right(framework)
    for faults in RUNS:
        found = isolated(reference, reference, of(faults)[0], variables, BATCH)
        kinds = {layer: kind for name, kind in faults.items() for layer in paths(name)}
        assert set(wrong(found)) == kinds.keys(), faults
        for row in found.different:
            assert row.forward is not None
            assert (row.forward.status == "same") is (kinds[row.name] == "backward"), row.name


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_call_is_a_script_that_runs_without_us(tmp_path: Path, framework: str) -> None:
    _, loss, variables, reference = right(framework)
    model = Model.of_values("net", loss, variables, BATCH)
    for name, gradients in (("bilinear", 3), ("loop[1]/cell", 3)):
        (path,) = paths(name)
        done = ran(tmp_path, reproduce(model, path, reference.source))
        assert done.status == 0, done.output
        assert max(done.errors.values()) < 1e-5
        assert sum(kind == "vjp" for kind, _ in done.errors) == gradients


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_script_of_a_faulty_call_shows_the_fault(tmp_path: Path, framework: str) -> None:
    of, _, variables, reference = right(framework)
    faults = RUNS[3]
    model = Model.of_values("net", of(faults)[0], variables, BATCH)
    for name in ("shared", "loop[1]/cell", "branch"):
        done = ran(tmp_path, reproduce(model, name, reference.source))
        assert done.status == 1, name


def paths(name: str) -> list[str]:
    """The paths of a call; a call in every iteration has as many."""
    return [name.replace("*", str(number)) for number in range(ITERATIONS)] if "*" in name else [name]
