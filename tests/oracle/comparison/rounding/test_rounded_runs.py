"""Runs of one program that add in another order are the same, and a real difference between them is found.

The bias of a layer before a normalisation over the batch has a gradient that is zero but for rounding, of which Adam
makes updates of ordinary size.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradscope.comparison.diagnosis.runs.run_divergence import RunDivergence, compare_runs
from gradscope.comparison.judging.compare_options import CompareOptions
from gradscope.history.history_reader import History
from gradscope.history.history_rows import StepRecord, TensorRow
from gradscope.history.history_writer import HistoryWriter
from tests.integration.command import gradscope
from tests.support.sampled import sampled

MODEL = """
import jax, jax.numpy as jnp, numpy as np


def init(key):
    keys = jax.random.split(key)
    return {"d1": {"kernel": jax.random.normal(keys[0], (16, 32)) / 4, "bias": jnp.zeros(32)},
            "d2": {"kernel": jax.random.normal(keys[1], (32, 4)) / 6, "bias": jnp.zeros(4)}}


def loss(params, batch):
    with jax.named_scope("d1"):
        x = batch["x"] @ params["d1"]["kernel"] + params["d1"]["bias"][None]
    with jax.named_scope("bn1"):
        x = (x - x.mean(0, keepdims=True)) * jax.lax.rsqrt(x.var(0, keepdims=True) + 1e-5)
    with jax.named_scope("d2"):
        logits = jax.nn.relu(x) @ params["d2"]["kernel"] + params["d2"]["bias"][None]
    return -jax.nn.log_softmax(logits)[jnp.arange(64), batch["y"]].mean()


class decayed:
    init = init
    batch = lambda key, size=64: next(batches())
    loss = lambda params, batch: loss(params, batch) + 1e-4 * params["d1"]["bias"].sum()


def batch(key, size=64):
    return next(batches())


def batches(reordered=False, other=None):
    rng = np.random.default_rng(1)
    order = np.random.default_rng(5).permutation(64) if reordered else np.arange(64)
    number = 0
    while True:
        x = rng.normal(size=(64, 16)).astype(np.float32)
        y = x[:, :4].argmax(1).astype(np.int32)
        yield {"x": x[order] * np.float32(1.01 if number == other else 1), "y": y[order]}
        number += 1


def reordered():
    return batches(True)


def others():
    return batches(True, 20)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("optax", reason="training needs optax: pip install 'gradscope-jax[train]'")
    made = tmp_path_factory.mktemp("runs")
    (made / "net.py").write_text(MODEL)
    train(made, "ref", data="batches")
    return made


def train(folder: Path, run: str, *, data: str, model: str = "net.py", optimizer: str = "tf1_adam(1e-3)") -> None:
    line = ("train", model, "--data", f"net.py:{data}", "--optimizer", optimizer, "--steps", 41, "--every", 10, "-q")
    done = gradscope(*line, "-o", run, folder=folder)
    assert done.status == 0, done.errors


def test_a_gradient_that_is_zero_but_for_rounding_is_no_difference(folder: Path) -> None:
    train(folder, "reordered", data="reordered")
    found = gradscope("compare", "ref", "reordered", "--json", folder=folder)
    assert (found.status, found.json["verdict"], found.json["rounded"]) == (0, "same", ["d1/bias"])
    moved = {row["family"] for row in found.json["rows"] if row.get("rounding")}
    assert {"param", "slot/mu", "update"} <= moved, "what Adam makes of it differs"
    assert "5 steps the same, 1 zero but for rounding" in gradscope("compare", "ref", "reordered", folder=folder).output
    assert gradscope("compare", "ref", "reordered", "--bitwise", folder=folder).status == 1


@pytest.mark.slow
@sampled(
    ("options", "step", "family", "name"),
    [
        ({"data": "others"}, 20, "input", "x"),
        ({"data": "reordered", "model": "net.py:decayed"}, 0, "param_grad", "d1/bias"),
        ({"data": "reordered", "optimizer": "tf1_adam(1.1e-3)"}, 0, "step", "learning_rate"),
        ({"data": "reordered", "optimizer": "tf1_adam(1e-3, beta1=0.8)"}, 0, "slot/mu", "d1/kernel"),
    ],
)
def test_a_real_difference_beside_it_is_found(
    folder: Path, options: dict[str, str], step: int, family: str, name: str
) -> None:
    run = "-".join(options.values()).replace(":", "-")
    train(folder, run, **options)
    found = gradscope("compare", "ref", run, "--json", folder=folder).json
    first = found["first"]
    assert (found["verdict"], found["first_step"]) == ("different", step)
    assert (first["family"], first["name"]) == (family, name)


SIZES = {"param": 4, "param_grad": 4, "update": 4, "slot/mu": 4, "activation": 64, "activation_grad": 64}


def recorded(folder: Path, steps: dict[int, dict[str, float]]) -> Path:
    """A run of a layer with a bias of 4 elements, by the root mean squares of its tensors."""
    folder.mkdir()
    shapes = {family: (4,) if size == 4 else (16, 4) for family, size in SIZES.items()}
    with HistoryWriter(folder, from_step=0, facts={"model": "net"}) as history:
        history.describe({}, [TensorRow(family=family, name="d/b" if shapes[family] == (4,) else "d", layer="d",
                                        dtype="float32", shape=shapes[family]) for family in SIZES])  # fmt: skip
        for step, scales in steps.items():
            stats: dict[str, Any] = {
                f"{family}/{'d/b' if size == 4 else 'd'}":
                {"l2": scales[family] * size**0.5, "rms": scales[family], "mean": 0.0, "nan": 0, "inf": 0}
                for family, size in SIZES.items()
            }  # fmt: skip
            history.write(lambda step=step, stats=stats: StepRecord(numbers={"step": step, "loss": 1.0}, stats=stats))
    return folder


SOUND = {"param": 1.0, "param_grad": 1e-9, "update": 1e-3, "slot/mu": 1e-10, "activation": 2.0, "activation_grad": 0.01}


def compared(folder: Path, step: int, changed: dict[str, float]) -> RunDivergence:
    """Another run that differs in its gradient from the first step on, and in more at a step."""
    ref = dict.fromkeys((0, 5, 10), SOUND)
    cand = {number: SOUND | {"param_grad": 3e-9} | (changed if number == step else {}) for number in ref}
    with History(recorded(folder / "a", ref)) as one, History(recorded(folder / "b", cand)) as other:
        return compare_runs(one, other, CompareOptions())


@pytest.mark.parametrize(
    ("step", "changed"),
    [
        (0, {"update": 5e-4, "slot/mu": 3e-10}),
        (5, {"param": 1.0099}),
        (10, {"param": 0.981, "activation": 2.019}),
    ],
)
def test_what_updates_of_rounding_can_make_is_no_difference(
    tmp_path: Path, step: int, changed: dict[str, float]
) -> None:
    found = compared(tmp_path, step, changed)
    assert (found.verdict, found.rounded) == ("same", ("d/b",)), found.sentence


@pytest.mark.parametrize(
    ("step", "changed", "family"),
    [
        (0, {"param": 1.01}, "param"),  # nothing has moved it yet
        (5, {"param": 1.02}, "param"),  # five steps of 1e-3 each way make 0.01
        (10, {"activation": 2.05}, "activation"),
        (5, {"param_grad": 1e-4}, "param_grad"),
        (5, {"activation_grad": 0.0102}, "activation_grad"),
        (5, {"update": np.inf}, "update"),
    ],
)
def test_what_they_cannot_make_is_one(tmp_path: Path, step: int, changed: dict[str, float], family: str) -> None:
    found = compared(tmp_path, step, changed)
    assert found.first is not None, found.sentence
    assert (found.first_step, found.first.family) == (step, family)
