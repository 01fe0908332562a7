"""`gradscope mesh`: a process for each number of devices, and what kind of fault makes them differ."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gradscope.cli.interrupts import Interrupts
from gradscope.cli.running.mesh_processes import run_on
from gradscope.dump.storage.writing.companions import alone_in
from gradscope.errors import MachineError
from tests.integration.command import Finished, gradscope, gradscope_process

#: A layer whose products are divided among devices, and that nothing adds up on more than one.
MODEL = """
import os

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AxisType, PartitionSpec


def init(key):
    return {"dense": jnp.sin(jnp.arange(12.0)).reshape(4, 3)}


def batch(key, size=4):
    return {"x": jnp.cos(jnp.arange(4.0 * size)).reshape(size, 4)}


def loss(variables, batch):
    if jax.device_count() > 2:
        raise ValueError("no more than two")
    mesh = jax.make_mesh((jax.device_count(),), ("model",), axis_types=(AxisType.Auto,))

    def part(variables, batch):
        with jax.named_scope("dense"):
            x = batch["x"] @ variables["dense"]
        return lax.pmean((x**2).mean(), "model")

    rows, columns = PartitionSpec("model"), PartitionSpec(None, "model")
    specs = {"mesh": mesh, "in_specs": (rows, columns), "out_specs": PartitionSpec()}
    return jax.shard_map(part, **specs, check_vma=False)(variables, batch)


class plain:
    init, batch = init, batch

    def loss(variables, batch):
        with jax.named_scope("dense"):
            return ((batch["x"] @ variables["dense"]) ** 2).mean()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "net.py").write_text(MODEL, encoding="utf-8")
    return tmp_path


def mesh(folder: Path, *options: object) -> Finished:
    return gradscope("mesh", *options, folder=folder)


def test_a_fault_has_its_kind_its_axis_and_the_line(folder: Path) -> None:
    done = mesh(folder, "net.py", "--devices", "1,2", "--json")
    assert (done.status, done.lines) == (1, ["running on 1 device", "running on 2 devices"])
    found = done.json
    assert found["verdict"] == "different"
    assert found["sentence"].startswith(
        "2 devices differ from 1 device: the devices along `model` have terms of `dense[0]`"
    )
    runs = [(run["devices"], run["axes"], run["dump"]) for run in found["runs"]]
    assert runs == [(n, {"model": n}, f"mesh/devices-{n}.npz") for n in (1, 2)]
    (comparison,) = found["comparisons"]
    assert (comparison["devices"], comparison["first_divergence"]["backward"]) == (2, "dense[0]")
    fault = {key: comparison["fault"][key] for key in ("kind", "axis", "name", "source")}
    assert fault == {"kind": "terms", "axis": "model", "name": "dense[0]", "source": "net.py:25"}
    again = gradscope("compare", *(run["dump"] for run in found["runs"]), folder=folder)
    assert again.status == 1


def test_examples_are_divided_where_nothing_names_a_mesh(folder: Path) -> None:
    done = mesh(folder, "net.py:plain", "--devices", "1,2", "-o", "here", "--quiet")
    assert (done.status, done.errors) == (0, "")
    assert done.output.startswith("same  Values and gradients on 2 devices are those on 1 device")
    assert "examples 2" in done.output


def test_a_model_that_fails_on_some_devices_says_on_how_many(folder: Path) -> None:
    done = gradscope_process("mesh", "net.py", "--devices", "3,1", "--quiet", folder=folder)
    assert done.status == 4
    assert done.lines[0].startswith("gradscope: error: on 3 devices: loss of net: ValueError: no more than two")
    assert done.lines[-1] == "the run on 3 devices ended with status 4"


@pytest.mark.parametrize("devices", ["", "1", "1,1", "0,2", "1,two", "1,-2", "1,9999"])
def test_devices_are_different_numbers(folder: Path, devices: str) -> None:
    done = mesh(folder, "net.py", "--devices", devices)
    assert done.status == 2
    assert done.lines[0].startswith(f"gradscope: error: --devices {devices!r}")


def test_what_is_in_the_way_is_not_replaced(folder: Path) -> None:
    (folder / "mesh").mkdir()
    (folder / "mesh" / "devices-2.npz").write_bytes(b"mine")
    done = mesh(folder, "net.py", "--devices", "1,2")
    assert (done.status, (folder / "mesh" / "devices-2.npz").read_bytes()) == (2, b"mine")
    assert "devices-2.npz exists" in done.lines[0]


def test_a_process_that_a_signal_ends_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed = tmp_path / "python"
    killed.write_text("#!/bin/sh\nkill -KILL $$\n", encoding="utf-8")
    killed.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(killed))
    with Interrupts() as here, pytest.raises(MachineError, match="the process on 2 devices was ended by SIGKILL"):
        run_on(2, [], here)


def test_two_at_once_do_not_compare_the_dumps_of_each_other(folder: Path) -> None:
    (folder / "dumps").mkdir()
    with alone_in(folder / "dumps", waiting=0):
        done = gradscope("mesh", "net.py:plain", "--devices", "1,2", "-o", "dumps", folder=folder)
    assert (done.status, "another process writes to dumps" in done.errors) == (2, True), done.errors
    assert [*(folder / "dumps").iterdir()] == []
