"""What can be asked of a run on the command line: operations, other gradients, a fragment, where a NaN began."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tests.integration.command import gradscope
from tests.support.sampled import sampled

MODEL = """
import jax
import jax.numpy as jnp


def init(key):
    return {"w": jnp.linspace(-1.0, 1.0, 6).reshape(3, 2)}


def batch(key, size):
    return {"x": jnp.linspace(0.5, 2.0, 3 * size).reshape(size, 3), "label": jnp.arange(size) % 2}


def loss(variables, batch):
    with jax.named_scope("logits"):
        logits = batch["x"] @ variables["w"]
    with jax.named_scope("relu"):
        hidden = jax.nn.relu(logits)
    with jax.named_scope("nll"):
        return -(jax.nn.log_softmax(hidden) * jax.nn.one_hot(batch["label"], 2)).sum()


class Broken:
    init, batch = staticmethod(init), staticmethod(batch)

    @staticmethod
    def loss(variables, batch):
        def iteration(total, x):
            return total + jnp.log(x.sum() - 2.0 + 0.0 * variables["w"].sum()), None  # the trap

        return jax.lax.scan(iteration, 0.0, batch["x"])[0]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model.py").write_text(MODEL)
    return tmp_path


@sampled(("wrt", "name"), [("kept", "relu/kept"), ("nll/exp", "nll/exp"), ("relu/relu", "relu")])
def test_a_gradient_is_with_respect_to_a_value_inside_a_layer_by_its_name(folder: Path, wrt: str, name: str) -> None:
    inside = MODEL.replace("relu(logits)", 'relu(jax.ad_checkpoint.checkpoint_name(logits, "kept"))')
    (folder / "inside.py").write_text(f"import jax.ad_checkpoint\n{inside}")
    done = gradscope("dump", "inside.py", "--wrt", wrt, "--json", "-q", "-o", "one.npz", folder=folder)
    assert done.status == 0, done.errors
    gradients = [(row["family"], row["name"]) for row in done.json["rows"] if row["family"].endswith("_grad")]
    assert gradients == [("activation_grad", name)]
    everything = gradscope("dump", "inside.py", "--ops", "--json", "-q", "-o", "all.npz", folder=folder)
    assert everything.status == 0, everything.errors
    with np.load(folder / "one.npz") as one, np.load(folder / "all.npz") as other:
        np.testing.assert_array_equal(one[f"activation_grad/{name}"], other[f"activation_grad/{name}"])
    wrong = gradscope("dump", "inside.py", "--wrt", "kepd", "-o", "no.npz", folder=folder)
    assert (wrong.status, "no value is called kepd" in wrong.errors, "kept" in wrong.errors) == (2, True, True)


@pytest.mark.slow
def test_operations_are_rows_next_to_layers_and_compare_with_a_dump_without_them(folder: Path) -> None:
    done = gradscope("dump", "model.py", "--ops", "--json", "-q", "-o", "ops.npz", folder=folder)
    assert done.status == 0, done.errors
    rows = {(row["family"], row["name"]): row for row in done.json["rows"]}
    assert rows["activation", "logits/dot_general"]["alias_of"] == "activation/logits"
    assert rows["activation", "nll/exp"]["primitive"] == "exp"
    assert rows["activation", "nll/exp"]["layer"] == "nll"
    assert rows["activation", "nll/exp"]["source"].startswith("model.py:")
    assert gradscope("dump", "model.py", "-q", "-o", "layers.npz", folder=folder).status == 0
    assert gradscope("compare", "layers.npz", "ops.npz", "--allow-missing", ".*/.*", folder=folder).status == 0


def test_strict_fails_on_what_is_missing_and_not_on_what_the_user_left_out(folder: Path) -> None:
    strict = ("dump", "model.py", "--ops", "--stats-only", "--strict", "--force")
    done = gradscope(*strict, folder=folder)
    assert done.status == 1
    assert "activation/relu/max: opaque" in done.errors
    assert gradscope(*strict, "--exclude", "relu/max", folder=folder).status == 0
    assert gradscope("dump", "model.py", "--strict", "--force", folder=folder).status == 0


@pytest.mark.slow
def test_a_fetch_reports_what_it_runs_and_runs_nothing_else(folder: Path) -> None:
    done = gradscope("dump", "model.py", "--fetch", "logits", "-o", "logits.npz", folder=folder)
    assert done.status == 0, done.errors
    assert "1 of " in done.errors and "inputs needed: x" in done.errors  # noqa: PT018
    with np.load(folder / "logits.npz") as arrays:
        assert [name for name in arrays.files if not name.startswith("__")] == ["activation/logits"]
    unknown = gradscope("dump", "model.py", "--fetch", "logit", folder=folder)
    assert unknown.status == 2
    assert "did you mean logits" in unknown.errors


def test_a_batch_may_lack_what_a_fetch_does_not_need(folder: Path) -> None:
    x = np.linspace(-1, 1, 15, dtype=np.float32).reshape(5, 3)
    np.savez(folder / "x.npz", x=x)
    done = gradscope("dump", "model.py", "--data", "x.npz", "--fetch", "logits", "-o", "logits.npz", folder=folder)
    assert done.status == 0, done.errors
    with np.load(folder / "logits.npz") as arrays:
        expected = x @ np.linspace(-1, 1, 6, dtype=np.float32).reshape(3, 2)
        np.testing.assert_allclose(arrays["activation/logits"], expected, rtol=1e-5, atol=1e-6)
    fed = gradscope(
        "dump", "model.py", "--data", "x.npz", "--fetch", "nll", "--feed", "label=label.npy", "-o", "nll.npz",
        folder=_with_labels(folder),
    )  # fmt: skip
    assert fed.status == 0, fed.errors
    lacking = ("--data", "x.npz", "--fetch", "nll")
    for refused in (
        gradscope("dump", "model.py", *lacking, "-o", "refused.npz", folder=folder),
        gradscope("inspect", "model.py", *lacking, folder=folder),
    ):
        assert refused.status == 3
        assert "the batch lacks label, which the requested values need" in refused.errors
    assert not (folder / "refused.npz").exists()
    refused = gradscope("dump", "model.py", "--data", "x.npz", "-o", "refused.npz", folder=folder)
    assert refused.status == 3
    assert "it lacks label" in refused.errors


def _with_labels(folder: Path) -> Path:
    np.save(folder / "label.npy", np.arange(5, dtype=np.int32) % 2)
    return folder


@pytest.mark.slow
def test_other_values_are_differentiated_under_initial_gradients_and_stops(folder: Path) -> None:
    signal = np.linspace(-1, 1, 16).reshape(8, 2).astype(np.float32)
    np.savez(folder / "signal.npz", signal=signal)
    of = ("--of", "logits", "--cotangent", "signal.npz:signal", "-o", "of.npz")
    fed = ("--feed", "gradient/logits=signal.npz:signal", "-o", "fed.npz")
    for options in (of, fed):
        done = gradscope("dump", "model.py", *options, "-q", folder=folder)
        assert done.status == 0, done.errors
    with np.load(folder / "of.npz") as one, np.load(folder / "fed.npz") as other:
        expected = one["input/x"].T @ signal
        np.testing.assert_allclose(one["param_grad/w"], expected, rtol=1e-5)
        np.testing.assert_allclose(other["param_grad/w"], expected, rtol=1e-5)
    stopped = gradscope("dump", "model.py", "--stop-gradient", "relu", "--wrt", "w", "--json", "--force", folder=folder)
    gradients = [row for row in stopped.json["rows"] if row["family"].endswith("_grad")]
    assert [(row["name"], row["absent"]) for row in gradients] == [("w", "disconnected")]


def test_the_origin_of_a_nan_is_reported_with_line_iteration_and_repair(folder: Path) -> None:
    line = MODEL.splitlines().index(next(line for line in MODEL.splitlines() if "# the trap" in line)) + 1
    done = gradscope("dump", "model.py:Broken", "--check", "nonfinite", "-o", "nan.npz", folder=folder)
    assert done.status == 1
    assert f"(model.py:{line}) made the first" in done.output
    assert "repair" in done.output
    origin = gradscope("show", "nan.npz", "--json", folder=folder).json["origins"][0]
    assert (origin["direction"], origin["primitive"], origin["iteration"]) == ("forward", "log", [0])


def test_memory_is_bounded_by_several_runs_or_the_run_is_refused(folder: Path) -> None:
    refused = gradscope("dump", "model.py", "--max-memory", "100", folder=folder)
    assert refused.status == 5
    assert "above the 100 B of --max-memory" in refused.errors
    assert gradscope("dump", "model.py", "--max-memory", "lots", folder=folder).status == 2
    done = gradscope("dump", "model.py", "--ops", "--max-memory", "1500", "-o", "parts.npz", folder=folder)
    assert done.status == 0, done.errors
    assert "of tensors are captured in" in done.errors


@pytest.mark.slow
def test_a_model_without_scopes_is_reported_with_the_origin_of_its_names(folder: Path) -> None:
    bare = MODEL.replace("jax.named_scope(", "nullcontext(")
    (folder / "bare.py").write_text(f"from contextlib import nullcontext\n{bare}")
    done = gradscope("dump", "bare.py", "-q", folder=folder)
    assert done.status == 0, done.errors
    assert re.search(
        r"^names +of the parameters that layers use, or the lines that compute them", done.output, re.MULTILINE
    )
    assert "\nw " in done.output
    named = gradscope("dump", "model.py", "-q", folder=folder)
    assert "\nnames " not in named.output
