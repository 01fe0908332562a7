"""Two processes under `jax.distributed` write one dump, and it is the dump that one process writes."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import gradscope
from gradscope.cli.running.starting_jax.joining import HEARTBEAT
from gradscope.dump.verify import verify
from gradscope.stats import TensorStats, tensor_stats
from tests.integration.command import Finished, ended, gradscope_process, started_process
from tests.integration.command import gradscope as gradscope_here

COUNT = 2

#: A step of a scanned model, batch split over all devices, one weight split too; and a model that the command dumps,
#: which spreads its variables and its batch in the same way.
MODEL = """
import os

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import gradscope as gs

mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))


def put(array, *spec):
    sharding = NamedSharding(mesh, P(*spec))
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def scanned(params, batch):
    def block(x, w):
        with jax.named_scope("block"):
            return jnp.tanh(x @ w), None

    x, _ = jax.lax.scan(block, batch, params["blocks"])
    with jax.named_scope("head"):
        y = x.astype(jnp.bfloat16) @ params["head"]
    return (y.astype(jnp.float32) ** 2).mean()


def take_a_step():
    draw = np.random.default_rng(0).standard_normal
    params = {
        "blocks": put(draw((3, 8, 8)).astype(np.float32)),
        "head": put(draw((8, 4)).astype(jnp.bfloat16), None, "data"),
        "unused": put(np.ones(3, np.float32)),
    }
    batch = put(draw((8, 8)).astype(np.float32), "data")
    for observe in ("tensors", "stats"):
        step = jax.jit(gs.value_and_grad(scanned, observe=observe))
        (value, gradients), seen = step(params, batch)
        manifest = gs.save(os.environ["FOLDER"] + "/" + observe, seen)
        assert manifest.complete, manifest.note
        assert manifest.loss == float(value)


def split(x, *spec):
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P(*spec)))


def init(key):
    return {"w": split(jax.random.normal(key, (8, 8)), None, "data"), "b": jnp.ones(())}


def batch(key, size):
    return split(jax.random.normal(key, (size, 8)), "data")


def loss(variables, x):
    with jax.named_scope("dense"):
        y = jnp.tanh(x @ variables["w"] + variables["b"])
    return (y**2).mean()
"""


#: Loading the model takes the step.
STEP = """
take_a_step()
"""


#: Process 1 dies when its file is written, before it waits for process 0, which waits for it.
DYING = """
import signal

from gradscope.dump.distributed import process_writer


class Dying(process_writer.DumpWriter):
    def commit(self, facts):
        super().commit(facts)
        os.kill(os.getpid(), signal.SIGKILL)


if jax.process_index() == 1:
    process_writer.DumpWriter = Dying
"""


@pytest.fixture(scope="module")
def dying(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[Future[tuple[Finished, float]]]]]:
    """A folder, and what comes of two processes there of which one dies, each with the time at which it ended."""
    folder = tmp_path_factory.mktemp("dying")
    (folder / "model.py").write_text(MODEL + DYING)
    address = free_address()
    environment = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "2", "FOLDER": str(folder)}
    processes = [
        started_process(
            *("dump", "model.py", "--distributed", f"{address},{COUNT},{index}", "-o", "model"),
            folder=folder,
            **environment,
        )
        for index in range(COUNT)
    ]
    with ThreadPoolExecutor(COUNT) as pool:
        yield folder, [pool.submit(lambda each=each: (ended(each), time.perf_counter())) for each in processes]


@pytest.fixture(scope="module")
def finished(dying: object, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Finished]]:
    """What this process writes by the command, in `one`, and two of two devices each, in `two`; and what they said.

    Those that wait for one that has died do so meanwhile.
    """
    folder = tmp_path_factory.mktemp("processes")
    for name in ("one", "two"):
        (folder / name).mkdir()
        (folder / name / "model.py").write_text(MODEL + STEP)
    here = gradscope_here("dump", "model.py", folder=folder / "one", FOLDER=str(folder / "one"))
    address = free_address()

    def process(index: int) -> Finished:
        how = ("--distributed", f"{address},{COUNT},{index}", "-o", "model")
        environment = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "2", "FOLDER": str(folder / "two")}
        return gradscope_process("dump", "model.py", "--json", *how, folder=folder / "two", **environment)

    with ThreadPoolExecutor(COUNT) as pool:
        finished = [here, *pool.map(process, range(COUNT))]
    assert [each.status for each in finished] == [0] * (1 + COUNT), "\n".join(each.errors for each in finished)
    return folder, finished


@pytest.fixture(scope="module")
def folders(finished: tuple[Path, list[Finished]]) -> tuple[Path, Path]:
    """What one process wrote, and what two did."""
    folder, _ = finished
    return folder / "one", folder / "two"


def free_address() -> str:
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return f"localhost:{found.getsockname()[1]}"


def test_the_tensors_of_two_processes_are_those_of_one(folders: tuple[Path, Path]) -> None:
    one, two = folders
    with gradscope.load(one / "tensors") as ref, gradscope.load(two / "tensors") as cand:
        assert ref.source.keys() == cand.source.keys()
        result = gradscope.compare(ref, cand)
        assert result, result.sentence
        for key in ("param/blocks", "param/head", "activation/block[2]", "activation_grad/block[0]", "param_grad/head"):
            assert (ref[key].shape, ref[key].dtype) == (cand[key].shape, cand[key].dtype)
        assert np.array_equal(ref["param/head"], cand["param/head"])
        assert (ref.ledger, ref.loss) == (cand.ledger, pytest.approx(cand.loss))


def test_each_process_writes_what_its_devices_hold(folders: tuple[Path, Path]) -> None:
    _, two = folders
    stored_names: list[set[str]] = []
    for index in range(COUNT):
        with np.load(two / "tensors" / f"proc-{index:05}-of-00002.npz") as members:
            stored_names.append({name for name in members if name.startswith("param/")})
    assert stored_names == [
        {"param/blocks", "param/unused", "param/head@0,0", "param/head@0,1"},
        {"param/head@0,2", "param/head@0,3"},
    ]
    assert verify(two / "tensors").complete


def test_statistics_and_layers_are_those_of_the_full_tensors(folders: tuple[Path, Path]) -> None:
    one, two = folders
    with gradscope.load(one / "tensors") as ref, gradscope.load(two / "tensors") as cand:
        for key in cand:
            entry = cand.source.entry(cand.source.resolve(key))
            found, expected = TensorStats.from_json(entry.stats), tensor_stats(np.asarray(cand[key]))
            assert (found.shape, found.dtype, found.zeros) == (expected.shape, expected.dtype, expected.zeros)
            assert [found.mean, found.l2, found.max] == pytest.approx([expected.mean, expected.l2, expected.max])
        for expected, found in zip(ref.layers, cand.layers, strict=True):
            assert (found.path, found.elements) == (expected.path, expected.elements)
            assert found.rms == pytest.approx(expected.rms, rel=1e-2)


def test_statistics_from_inside_the_step_are_the_same(folders: tuple[Path, Path]) -> None:
    one, two = folders
    with gradscope.load(one / "stats") as ref, gradscope.load(two / "stats") as cand:
        assert cand.manifest.tier == "core"
        assert gradscope.compare(ref, cand)
        assert [layer.elements for layer in ref.layers] == [layer.elements for layer in cand.layers]


def test_the_command_dumps_a_model_that_is_spread_over_processes(finished: tuple[Path, list[Finished]]) -> None:
    folder, (_, first, second) = finished
    assert first.json["dump"] == "model"
    assert second.output == "", "one speaks for all"
    compared = gradscope_here("compare", "one/model.npz", "two/model", "--json", folder=folder)
    assert compared.json["verdict"] == "same"
    assert all(row["status"] == "same" for row in compared.json["rows"])


def test_a_process_that_dies_at_the_commit_is_noticed_within_the_heartbeat(
    dying: tuple[Path, list[Future[tuple[Finished, float]]]],
) -> None:
    folder, processes = dying
    (first, until), (second, died) = (process.result() for process in processes)
    assert second.status == -signal.SIGKILL
    assert first.status == 5
    assert "another process of the run" in first.errors
    # JAX polls for heartbeats, and ends a process some seconds later.
    assert until - died < 2 * HEARTBEAT
    refused = gradscope_here("show", "model", folder=folder)
    assert "incomplete" in refused.output + refused.errors


@pytest.mark.parametrize("how", ["here", "localhost,2,0", "localhost:1,2"])
def test_a_meeting_place_is_an_address_and_two_numbers(how: str, tmp_path: Path) -> None:
    refused = gradscope_here("dump", "mlp", "--distributed", how, folder=tmp_path)
    assert refused.status == 2
    assert "neither 'auto' nor HOST:PORT,COUNT,INDEX" in refused.errors
