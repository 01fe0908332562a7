"""The commands that run a model, on a module of a framework."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from tests.integration import command
from tests.integration.command import gradscope, gradscope_process
from tests.support.reproduction import run

NET = """
from flax import nnx

class Net(nnx.Module):
    def __init__(self, width: int, *, rngs: nnx.Rngs):
        self.first = nnx.Linear(4, width, rngs=rngs)
        self.last = nnx.Linear(width, 3, rngs=rngs)
    def __call__(self, x):
        return self.last(nnx.tanh(self.first(x)))
"""


GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "frameworks.md"

#: Framework and command line of each row of the guide's table.
LINES = re.findall(r"^\| ([\w ]+) \| `gradscope (dump [^`]*)` \|$", GUIDE.read_text(encoding="utf-8"), re.MULTILINE)
PACKAGES = {"Flax Linen": "flax", "Flax NNX": "flax", "Equinox": "equinox", "Haiku": "haiku", "Keras 3": "keras"}


@pytest.mark.parametrize(("framework", "line"), LINES, ids=[framework for framework, _ in LINES])
def test_a_line_of_the_guide_runs_as_it_is_pasted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, framework: str, line: str
) -> None:
    monkeypatch.setattr(command, "TIMEOUT", 300)  # MobileNetV2 takes a minute to compile where others compile, too
    package = PACKAGES[framework]
    pytest.importorskip(package, reason=f"{package} is not installed: pip install 'gradscope-jax[{package}]'")
    strictness = {"JAX_NUMPY_DTYPE_PROMOTION": "standard", "JAX_NUMPY_RANK_PROMOTION": "allow"}
    done = gradscope_process(*shlex.split(line), "--stats-only", "--json", folder=tmp_path, **strictness)
    assert done.status == 0, done.errors
    linked = {row["name"] for row in done.json["rows"] if row["family"] == "param_grad"}
    assert linked


def test_the_guide_has_a_line_for_every_framework() -> None:
    assert [framework for framework, _ in LINES] == list(PACKAGES)


def test_the_guides_lines_for_pytorch_run_as_they_are_pasted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'gradscope-jax[torch]'")
    monkeypatch.chdir(tmp_path)
    (lines,) = re.findall(r"```python\n(from torch.nn import [^`]*)```", GUIDE.read_text(encoding="utf-8"))
    model, images = torch.nn.Sequential(torch.nn.Linear(4, 3)), torch.ones(5, 4)
    namespace = {"model": model, "images": images, "labels": torch.arange(5) % 3}
    for _ in range(2):
        exec(lines, namespace)
    with np.load("torch.npz") as seen:
        assert np.allclose(seen["activation/0"], model(images).detach())


def test_the_guides_file_of_a_partitioned_module_runs_as_it_is_pasted(tmp_path: Path) -> None:
    pytest.importorskip("equinox", reason="equinox is not installed: pip install 'gradscope-jax[equinox]'")
    (lines,) = re.findall(r"```python\n(import equinox [^`]*)```", GUIDE.read_text(encoding="utf-8"))
    (command_line,) = re.findall(r"`gradscope (dump partition.py[^`]*)`", GUIDE.read_text(encoding="utf-8"))
    (tmp_path / "partition.py").write_text(lines)
    dumped = gradscope(*shlex.split(command_line), "--json", folder=tmp_path)
    assert dumped.status == 0, dumped.errors
    assert "layers/0/weight" in {row["name"] for row in dumped.json["rows"] if row["family"] == "param"}


def test_every_command_takes_a_module_and_its_inputs(tmp_path: Path) -> None:
    pytest.importorskip("flax", reason="flax is not installed: pip install 'gradscope-jax[flax]'")
    (tmp_path / "net.py").write_text(NET)
    options = ("net.py:Net(5)", "--input", "float32[6,4]", "--loss", "cross-entropy", "--json")
    dumped = gradscope("dump", *options, "--strict", "-v", folder=tmp_path)
    assert dumped.status == 0, dumped.errors
    assert dumped.lines[:2] == [
        f"net.py is a path, loaded from {tmp_path / 'net.py'}",
        "Net is a module of Flax NNX, training",
    ]
    names = {row["name"] for row in dumped.json["rows"] if row["family"] == "activation"}
    assert names == {"Net", "first", "last", "loss"}
    inspected = gradscope("inspect", *options, folder=tmp_path)
    assert inspected.status == 0, inspected.errors
    checked = gradscope("check", *options, folder=tmp_path)
    assert (checked.status, checked.json["verdict"]) == (0, "correct"), checked.errors


def test_a_data_file_describes_the_inputs_and_brings_the_labels(tmp_path: Path) -> None:
    pytest.importorskip("flax", reason="flax is not installed: pip install 'gradscope-jax[flax]'")
    (tmp_path / "net.py").write_text(NET)
    image, label = np.linspace(-1, 1, 20).reshape(5, 4), np.array([0, 1, 2, 1, 0])
    np.savez(tmp_path / "digits.npz", image=image, label=label)
    options = ("net.py:Net(5)", "--data", "digits.npz", "--loss", "cross-entropy")
    done = gradscope("dump", *options, "-o", "out.npz", "--json", folder=tmp_path)
    assert done.status == 0, done.errors
    with np.load(tmp_path / "out.npz") as seen:
        assert np.array_equal(seen["input/image"], image.astype("f4"))
        assert np.array_equal(seen["input/label"], label)
        hidden = np.tanh(seen["input/image"] @ seen["param/first/kernel"])
        logits = hidden @ seen["param/last/kernel"]
        assert np.allclose(seen["activation/last"], logits, atol=1e-6)
        likelihoods = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        assert done.json["loss"] == pytest.approx(-np.log(likelihoods[range(5), label]).mean(), rel=1e-5)


@pytest.mark.parametrize("batch", ["(image, label)", "{'image': image, 'label': label, 'file': 'a.png'}"])
def test_a_pipeline_describes_the_inputs_and_is_read_once(tmp_path: Path, batch: str) -> None:
    pytest.importorskip("flax", reason="flax is not installed: pip install 'gradscope-jax[flax]'")
    (tmp_path / "net.py").write_text(NET)
    lines = ("import numpy as np", "image, label = np.ones((5, 4)), np.arange(5) % 3", f"loader = iter([{batch}])")
    (tmp_path / "data.py").write_text("\n".join(lines))
    options = ("net.py:Net(5)", "--data", "data.py:loader", "--loss", "cross-entropy")
    done = gradscope("dump", *options, "-o", "out.npz", "--json", folder=tmp_path)
    if "file" in batch:
        assert (done.status, done.lines[0]) == (
            3, "gradscope: error: batch 0 of data.py:loader is not a batch for this model: the model has no file"
        )  # fmt: skip
        return
    assert done.status == 0, done.errors
    with np.load(tmp_path / "out.npz") as seen:
        assert {key for key in seen if key.startswith("input/")} == {"input/0", "input/1"}
        assert np.array_equal(seen["input/1"], np.arange(5) % 3)
        assert seen["activation/last"].shape == (5, 3)


def test_inputs_of_a_wrong_shape_show_the_line_that_minds(tmp_path: Path) -> None:
    pytest.importorskip("flax", reason="flax is not installed: pip install 'gradscope-jax[flax]'")
    (tmp_path / "net.py").write_text(NET)
    done = gradscope("dump", "net.py:Net(5)", "--input", "float32[6]", folder=tmp_path)
    assert done.status == 4
    assert done.lines[0].startswith("gradscope: error: batch of net.Net(5): ")
    assert any('File "net.py", line 9, in __call__' in line for line in done.lines)


BLOCKS = """
import flax.linen as nn

class Block(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.LayerNorm()(nn.tanh(nn.Dense(6)(x)) + x)

class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(Block(name="second")(Block(name="first")(x)))
"""


def test_a_linen_module_is_reproduced_with_its_parameters(tmp_path: Path) -> None:
    pytest.importorskip("flax", reason="flax is not installed: its modules were NOT reproduced")
    (tmp_path / "blocks.py").write_text(BLOCKS)
    line = ("dump", "blocks.py:Net", "--input", "float32[4,6]", "-o", "blocks.npz")
    assert gradscope(*line, folder=tmp_path).status == 0
    assert gradscope("isolate", "second", "blocks.npz", "blocks.py:Net", folder=tmp_path).status == 0
    ran = run(tmp_path / "repro" / "isolated.py")
    assert ran.status == 0, ran.output
    rules_with_errors = [name for kind, name in ran.errors if kind == "vjp"]
    assert len(rules_with_errors) == 5  # the input, and the two parameters of each of both modules inside
