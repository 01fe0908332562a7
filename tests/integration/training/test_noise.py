"""The noise of gradients of a run: measured on its own clock, smoothed, resumed, shown and exported."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradscope as gs
from tests.integration.command import gradscope
from tests.integration.training.trained import contents, rows

pytest.importorskip("optax", reason="training needs optax: pip install 'gradscope-jax[train]'")

pytestmark = pytest.mark.usefixtures("usual_promotion")

TRAIN = ("train", "linear_regression", "--optimizer", "sgd(0.05)", "--every", 4, "--per-example-every", 3)


@pytest.fixture(scope="module")
def folder(usual_promotion: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of 11 steps, `run`, of which every fourth is recorded, and the noise of every third."""
    path = tmp_path_factory.mktemp("noise")
    done = gradscope(*TRAIN, "--steps", 11, "-o", "run", folder=path)
    assert done.status == 0, done.errors
    (cost,) = [line for line in done.errors.splitlines() if "noise of gradients" in line]
    assert "32 gradients of an example" in cost
    assert "66.7% more" in cost
    return path


@pytest.mark.slow
def test_noise_has_a_clock_of_its_own_and_averages_before_the_ratio(folder: Path) -> None:
    with gs.Run(folder / "run") as run:
        noise, weight = run.noise(), run.noise("param_grad/weight")
        assert run.steps["step"].tolist() == [0, 3, 4, 6, 8, 9, 10]
        assert noise["step"].tolist() == weight["step"].tolist() == [0, 3, 6, 9, 10]
        both = run.noise("param_grad/bias")["variance"] + weight["variance"]
        np.testing.assert_allclose(noise["variance"], both, rtol=1e-6)
        for name in ("variance", "signal"):
            raw = weight[name]
            by_hand = [np.average(raw[: t + 1], weights=0.9 ** np.arange(t, -1, -1)) for t in range(len(raw))]
            np.testing.assert_allclose(weight[f"{name}_smoothed"], by_hand, rtol=1e-9)
        ratio = noise["variance_smoothed"] / noise["signal_smoothed"]
        np.testing.assert_allclose(noise["noise_scale"], np.where(ratio > 0, ratio, np.nan), rtol=1e-12)
        assert np.nanmax(noise["coupling"]) < 1e-5
        assert np.isnan(weight["coupling"]).all()


@pytest.mark.slow
def test_a_resumed_run_has_the_noise_of_one_that_was_not_stopped(folder: Path) -> None:
    assert gradscope(*TRAIN, "--steps", 7, "-q", "-o", "part", folder=folder).status == 0
    # The last step of the first part was recorded because it was the last.
    again = gradscope(*TRAIN, "--steps", 11, "--resume", "-q", "-o", "part", folder=folder)
    assert again.status == 0, again.errors
    assert rows(folder / "part", "noise") == rows(folder / "run", "noise")
    assert contents(folder / "part", 11)[0] == contents(folder / "run", 11)[0]


def test_noise_is_shown_and_exported(folder: Path) -> None:
    with gs.Run(folder / "run") as run:
        noise = run.noise()
    for line, at in ((("show", "run"), -1), (("show", "run", "--step", 6), 2)):
        shown = json.loads(gradscope(*line, "--json", folder=folder).output)["noise"]
        assert shown["step"] == noise["step"][at]
        assert shown["rows"][0]["variance"] == noise["variance"][at]
        assert [row.get("name") for row in shown["rows"]] == [None, "bias", "weight"]
    assert "noise" not in json.loads(gradscope("show", "run", "--step", 4, "--json", folder=folder).output)
    assert "all parameters" in gradscope("show", "run", folder=folder).output
    table = csv.reader(io.StringIO(gradscope("export", "run", "--to", "csv", folder=folder).output))
    found = {(row[0], row[2]): row[4] for row in table if row[3] == "variance"}
    assert {int(step) for step, _ in found} == set(noise["step"].tolist())
    assert [float(found[str(step), ""]) for step in noise["step"]] == noise["variance"].tolist()


def test_watch_has_the_noise(folder: Path) -> None:
    with gs.Run(folder / "run") as run:
        noise = run.noise()
    watched = gradscope("watch", "run", "--json", folder=folder).json["noise"]
    assert (watched["step"], watched["gsnr"]) == (10, noise["gsnr"][-1])
    shown = gradscope("watch", "run", folder=folder).output
    assert re.search(r"^gsnr +\d", shown, re.MULTILINE), shown


#: What batch norm does to the gradient of an example, and nothing else.
COUPLED = """
import jax
import jax.numpy as jnp


def init(key):
    return {"hidden": {"kernel": jax.random.normal(key, (6, 16))}, "head": {"kernel": jnp.ones((16, 2))}}


def batch(key, size=8):
    return {"x": jax.random.normal(key, (size, 6))}


def loss(variables, batch):
    with jax.named_scope("hidden"):
        hidden = batch["x"] @ variables["hidden"]["kernel"]
    hidden = jnp.tanh(jax.nn.standardize(hidden, axis=0))
    with jax.named_scope("head"):
        return ((hidden @ variables["head"]["kernel"] - batch["x"][:, :2]) ** 2).mean()
"""


def test_a_model_with_batch_norm_is_reported_about_microbatches(tmp_path: Path) -> None:
    (tmp_path / "coupled.py").write_text(COUPLED)
    line = ("train", "coupled.py", "--optimizer", "sgd(0.1)", "--per-example-every", 2, "--select", "head*")
    done = gradscope(*line, "--steps", 3, "--microbatch", 4, "-o", "halves", folder=tmp_path)
    assert done.status == 0, done.errors
    assert done.errors.count("couples examples") == 1
    with gs.Run(tmp_path / "halves") as run:
        noise: dict[str, Any] = run.noise("param_grad/hidden/kernel")  # not among what is selected
        assert noise["groups"].tolist() == [2, 2]
        assert np.isnan(noise["gsnr"]).all()
    done = gradscope(*line, "--steps", 3, "--microbatch", 3, "-o", "thirds", folder=tmp_path)
    assert (done.status, "groups of 3" in done.errors) == (2, True)
    assert not (tmp_path / "thirds").exists()
