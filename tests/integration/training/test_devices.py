"""Data parallelism over two local devices: the numbers of one device, up to the order of sums."""

from __future__ import annotations

import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

import gradscope as gs
from gradscope.naming import split_key
from tests.integration.command import gradscope
from tests.integration.training.trained import write_files

pytest.importorskip("optax", reason="training needs optax: pip install 'gradscope-jax[train]'")

pytestmark = [
    pytest.mark.usefixtures("usual_promotion"),
    pytest.mark.skipif(jax.local_device_count() < 2, reason="needs two devices"),
]


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
