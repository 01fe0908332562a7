"""`gradscope calibrate`: a reference that knows its own noise."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradscope.dump.manifest.json_text import as_float
from gradscope.dump.reader import open_dump
from tests.integration.command import gradscope


@pytest.fixture(scope="module")
def folder(dumps: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the model's calibrated reference, and the model itself."""
    folder = tmp_path_factory.mktemp("calibrated")
    (folder / "model.py").write_text((dumps / "model.py").read_text())
    done = gradscope("calibrate", "model.py", "-o", "ref.npz", "--seed", 0, folder=folder)
    assert done.status == 0, done.errors
    assert [line.split("  ")[0] for line in done.output.splitlines()] == ["ref.npz", "noise", "noise@bfloat16"]
    return folder


@pytest.mark.slow
def test_computed_tensors_have_noise_floors_and_inputs_none(folder: Path) -> None:
    with open_dump(folder / "ref.npz") as ref:
        entries = [entry for entry in ref.manifest.entries if entry.alias_of is None]
    for family in ("activation", "param_grad"):
        floors = [entry.stats for entry in entries if entry.family == family]
        assert 0 < max(as_float(stats["noise"]) for stats in floors) < 1e-5
        assert 1e-4 < max(as_float(stats["noise@bfloat16"]) for stats in floors) < 0.1
    assert all("noise" in entry.stats for entry in entries if entry.family in ("activation_grad", "input_grad"))
    uncomputed = [entry.stats for entry in entries if entry.family in ("param", "input")]
    assert uncomputed
    assert not any("noise" in stats or "noise@bfloat16" in stats for stats in uncomputed)


def test_it_is_the_dump_that_the_model_gives(dumps: Path, folder: Path) -> None:
    assert gradscope("compare", "ref.npz", dumps / "a.npz", "--bitwise", folder=folder).status == 0
    assert gradscope("verify", "ref.npz", folder=folder).status == 0
    assert gradscope("show", "ref.npz", folder=folder).status == 0


@pytest.mark.slow
def test_low_precision_is_noise_and_another_model_is_not(dumps: Path, folder: Path) -> None:
    narrow = gradscope("dump", "model.py", "--dtype", "bfloat16", "-o", "bf16.npz", "--quiet", folder=folder)
    assert narrow.status == 0
    low = gradscope("compare", "ref.npz", "bf16.npz", folder=folder)
    assert (low.status, low.output.startswith("same  Same within noise: ")) == (0, True)
    other = gradscope("compare", "ref.npz", dumps / "b.npz", "--json", folder=folder)
    assert (other.status, "x noise" in other.json["sentence"]) == (1, True)
    first = next(row for row in other.json["rows"] if row["family"] == "activation")
    assert first["noise"] > 1e3


def test_it_states_the_target_and_a_dump_of_that_does_not_replace_it(folder: Path) -> None:
    with open_dump(folder / "ref.npz") as ref:
        assert ref.manifest.provenance["target"] == "model.py"
    (folder / "model.npz").write_bytes((folder / "ref.npz").read_bytes())
    refused = gradscope("dump", "model.py", folder=folder)
    assert (refused.status, refused.lines[0]) == (
        2, "gradscope: error: model.npz exists, and is a calibrated reference",
    )  # fmt: skip


def test_an_existing_reference_stays_unless_force_is_given(folder: Path) -> None:
    refused = gradscope("calibrate", "model.py", "-o", "ref.npz", folder=folder)
    assert (refused.status, refused.lines[0]) == (2, "gradscope: error: ref.npz exists")


def test_a_model_that_runs_in_one_type_alone_is_a_reference_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "carry.py").write_text(
        "import jax, jax.numpy as jnp\n"
        "def init(key): return {'w': jnp.ones(3)}\n"
        "def batch(key, size): return {'x': jnp.ones((size, 3))}\n"
        "def loss(params, batch):\n"
        "    step = lambda carry, x: (jnp.tanh(carry + x * params['w']), None)\n"
        "    return jax.lax.scan(step, jnp.zeros(3, jnp.float32), batch['x'])[0].sum()\n"
    )
    done = gradscope("calibrate", "carry.py", "-o", "ref.npz", folder=tmp_path)
    assert done.status == 0, done.errors
    assert "noise@bfloat16  not measured, as the model does not run in that type: loss of carry: " in done.output
    with open_dump(tmp_path / "ref.npz") as ref:
        assert any("noise" in entry.stats for entry in ref.manifest.entries)
        assert not any("noise@bfloat16" in entry.stats for entry in ref.manifest.entries)


def test_what_is_zero_but_for_rounding_is_named_and_is_no_worst_tensor(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(_NORMALISED)
    done = gradscope("calibrate", "net.py", "-o", "ref.npz", folder=tmp_path)
    assert done.status == 0, done.errors
    lines = {line.split("  ")[0]: line for line in done.output.splitlines()}
    assert lines["rounding"].endswith("without those that are zero but for rounding: param_grad/a/b")
    assert "param_grad/a/b" not in lines["noise"] + lines["noise@bfloat16"]
    assert float(lines["noise"].split()[3].rstrip(",")) < 1e-4
    with open_dump(tmp_path / "ref.npz") as ref:
        assert as_float(ref.entry("param_grad/a/b").stats["noise"]) > 0.1


_NORMALISED = """
import jax
import jax.numpy as jnp


def init(key):
    keys = jax.random.split(key)
    return {"a": {"w": jax.random.normal(keys[0], (4, 4)), "b": jnp.zeros(4)}, "o": jax.random.normal(keys[1], (4, 1))}


def batch(key, size):
    return {"x": jax.random.normal(key, (size, 4))}


def loss(variables, batch):
    with jax.named_scope("a"):
        h = batch["x"] @ variables["a"]["w"] + variables["a"]["b"][None]
    with jax.named_scope("norm"):
        h = (h - h.mean(0, keepdims=True)) / jnp.sqrt(h.var(0, keepdims=True) + 1e-3)
    with jax.named_scope("o"):
        return ((jnp.tanh(h) @ variables["o"]) ** 2).mean()
"""
