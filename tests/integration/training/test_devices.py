"""Data parallelism over two devices: the numbers of one, up to the order of sums; the same bits in two processes."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax
import numpy as np
import pytest

import gradscope as gs
from gradscope.naming import split_key
from tests.integration.command import ended, gradscope, started_process
from tests.integration.training.trained import contents, write_files

pytest.importorskip("optax", reason="training needs optax: pip install 'gradscope-jax[train]'")

pytestmark = [
    pytest.mark.usefixtures("usual_promotion", "lost"),
    pytest.mark.skipif(jax.local_device_count() < 2, reason="needs two devices"),
]

COUNT, STEPS = 2, 5
TRAIN = ("train", "net.py", "--steps", STEPS, "--every", 2, "--ema", 0.9, "--per-example-every", 3, "--save-every", 2)

#: What the run of two processes has beside.
IN_TWO = ("--data", "lost.py:batches", "-o", "two", "--json")

#: The batches of `data.py`; the second of two processes ends itself before step 3 where the folder has a file `fatal`.
DATA = """
import os
import shutil
import signal
from pathlib import Path

import jax
from data import batches as sound


def batches():
    for number, batch in enumerate(sound()):
        if number == 3 and jax.process_index() == 1 and Path("fatal").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        yield batch
"""


def together(folder: Path, *options: object) -> list[subprocess.Popen[str]]:
    """Both processes of a run, of one device each, under way."""
    with socket.socket() as found:
        found.bind(("localhost", 0))
        address = f"localhost:{found.getsockname()[1]}"
    environment = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1", "JAX_NUMPY_DTYPE_PROMOTION": "standard"}
    return [
        started_process(
            *(*TRAIN, "--distributed", f"{address},{COUNT},{index}", *IN_TWO, *options),
            folder=folder,
            **environment,
            PYTHONPATH=str(folder),
        )
        for index in range(COUNT)
    ]


@pytest.fixture(scope="module")
def lost(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[subprocess.Popen[str]]]]:
    """A folder, and two processes of a run there of which one is lost: other tests run while the first one waits."""
    folder = tmp_path_factory.mktemp("lost")
    write_files(folder)
    (folder / "lost.py").write_text(DATA)
    (folder / "fatal").touch()
    processes = together(folder)
    yield folder, processes
    for process in processes:
        process.kill()
        process.communicate()


def test_two_devices_have_the_numbers_of_one(tmp_path: Path) -> None:
    write_files(tmp_path)
    line = ("train", "net.py", "--data", "data.py:batches", "--every", 2, "--ema", 0.9, "-q", "--per-example-every", 5)
    for devices in (1, 2):
        options = ("--steps", 5, "--devices", devices, "--save-every", 3, "-o", f"on{devices}")
        done = gradscope(*line, *options, folder=tmp_path)
        assert done.status == 0, done.errors
    with gs.Run(tmp_path / "on1") as one, gs.Run(tmp_path / "on2") as two:
        assert one.keys() == two.keys()
        np.testing.assert_allclose(one.steps["loss"], two.steps["loss"], rtol=1e-5)
        np.testing.assert_allclose(one.noise()["variance"], two.noise()["variance"], rtol=1e-4)
        for key in one.keys():  # noqa: SIM118 - a run is no mapping
            # A mean near zero is as far off as its terms are large.
            size = one.series(key, "amax").max()
            for column in ("l2", "rms", "mean", "amax"):
                ours, theirs = one.series(key, column), two.series(key, column)
                np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4 * size, err_msg=f"{key} {column}")
            np.testing.assert_array_equal(one.series(key, "nan"), two.series(key, "nan"))
    with gs.load(tmp_path / "on1" / "state-000005.npz") as one, gs.load(tmp_path / "on2" / "state-000005.npz") as two:
        for key in one:
            if split_key(key)[0] == "param":
                np.testing.assert_allclose(one[key], two[key], rtol=1e-3, atol=1e-5, err_msg=key)
    # What was saved on two devices goes on there, and is the same as without a stop.
    shutil.copytree(tmp_path / "on2", tmp_path / "part")
    (tmp_path / "part" / "state-000005.npz").unlink()
    other = gradscope(*line, "--steps", 5, "--devices", 1, "--resume", "-o", "part", folder=tmp_path)
    assert (other.status, "--devices 2" in other.errors) == (2, True)
    done = gradscope(*line, "--steps", 5, "--devices", 2, "--save-every", 3, "--resume", "-o", "part", folder=tmp_path)
    assert done.status == 0, done.errors
    with gs.load(tmp_path / "part" / "state-000005.npz") as part, gs.load(tmp_path / "on2" / "state-000005.npz") as two:
        assert all(part[key].tobytes() == two[key].tobytes() for key in two if split_key(key)[0] == "param")


#: `net.py` with its arrays split over explicit axes by itself, and no mesh that is set.
SPLIT = """
import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec
import net
from net import loss, optimizer

mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Explicit,))

def init(key):
    return jax.device_put(net.init(key), NamedSharding(mesh, PartitionSpec()))

def batch(key, size):
    return jax.device_put(net.batch(key, size), NamedSharding(mesh, PartitionSpec("data")))
"""


@pytest.mark.slow
def test_a_model_that_splits_its_own_arrays_has_the_numbers_of_one_device(tmp_path: Path) -> None:
    write_files(tmp_path)
    (tmp_path / "split.py").write_text(SPLIT)
    for name in ("net", "split"):
        done = gradscope("train", f"{name}.py", "--steps", 3, "--every", 1, "-q", "-o", name, folder=tmp_path)
        assert done.status == 0, done.errors
    assert gradscope("compare", "net", "split", folder=tmp_path).status == 0


def test_examples_are_spread_and_all_else_is_on_each_device() -> None:
    from gradscope.training.loop.placement import Placement

    batch = {"x": np.ones((6, 3), np.float32), "temperature": np.float32(2)}
    placed = Placement(2, batch, None).spread(batch)
    assert [shard.data.shape for shard in placed["x"].addressable_shards] == [(3, 3), (3, 3)]
    assert [shard.data.shape for shard in placed["temperature"].addressable_shards] == [(), ()]


def test_devices_that_are_not_there_or_share_no_examples_are_refused(tmp_path: Path) -> None:
    line = ("train", "linear_regression", "--optimizer", "sgd(0.1)", "--steps", 1, "-o", "run", "-q")
    done = gradscope(*line, "--devices", 99, folder=tmp_path)
    assert (done.status, "JAX_NUM_CPU_DEVICES=99" in done.errors) == (2, True)
    done = gradscope(*line, "--devices", 2, "--batch-size", 7, folder=tmp_path)
    assert (done.status, "7 examples do not divide" in done.errors) == (2, True)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_two_processes_have_the_run_of_one_through_a_lost_one(
    lost: tuple[Path, list[subprocess.Popen[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, processes = lost
    monkeypatch.syspath_prepend(folder)
    first, second = map(ended, processes)
    assert (first.status, second.status) == (5, -signal.SIGKILL), first.errors
    assert "another process of the run has ended or does not answer" in first.errors
    assert (folder / "two" / "state-000002.npz").exists()
    (folder / "fatal").unlink()

    first, second = map(ended, together(folder, "--resume"))
    assert (first.status, second.status) == (0, 0), first.errors + second.errors
    assert (first.json["resumed_from"], second.output) == (2, ""), "one speaks for all"
    one = gradscope(*TRAIN, "--devices", COUNT, "--data", "lost.py:batches", "-o", "one", folder=folder)
    assert one.status == 0, one.errors
    assert contents(folder / "two", STEPS) == contents(folder / "one", STEPS)


def test_what_one_process_knows_all_act_upon_at_the_same_step() -> None:
    from gradscope.training.loop.processes import Agreement, Processes

    class Both(Processes):
        """This process and another one, with what that one knows."""

        def __init__(self, other: tuple[int, int]) -> None:
            super().__init__()
            self.count, self.other = 2, other

        def largest(self, numbers: Sequence[int]) -> np.ndarray:
            return np.array([max(both) for both in zip(numbers, self.other, strict=True)])

    agreement = Agreement(Both((0, 0)), stop=lambda: signal.SIGTERM, seconds=0.0, every=None)
    wishes = agreement.wishes()
    assert (agreement.signal, agreement.is_save_due(1)) == (0, False), "the others do not know it yet"
    agreement.heard(wishes)
    assert (agreement.signal, agreement.is_save_due(1)) == (signal.SIGTERM, True)
    agreement.saved()
    assert (agreement.signal, agreement.is_save_due(2)) == (signal.SIGTERM, False)
    hears = Agreement(Both((signal.SIGINT, 1)), stop=lambda: 0, seconds=600.0, every=None)
    hears.heard(hears.wishes())
    assert (hears.signal, hears.is_save_due(1)) == (signal.SIGINT, True)
    alone = Agreement(Processes(), stop=lambda: signal.SIGINT, seconds=None, every=3)
    assert (alone.signal, [number for number in range(1, 7) if alone.is_save_due(number)]) == (signal.SIGINT, [3, 6])
