"""`gradscope compare` of the runs of a network and of its port, which calls its parameters otherwise."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.integration.command import gradscope
from tests.support.page_samples import content_of
from tests.support.sampled import sampled

#: Channels first, with the names of PyTorch, and channels last, with those of Flax.
REFERENCE = """
import jax, jax.numpy as jnp, numpy as np

NAMES = ("layers_0", "layers_1", "head", "weight")
FIRST = True
FUNCTION = jax.nn.relu

def init(key):
    draw = np.random.default_rng(0).normal
    shapes = ((6, 3, 3, 3), (6, 6, 3, 3), (4, 6))
    kernels = [draw(size=shape).astype(np.float32) / np.prod(shape[1:]) ** 0.5 for shape in shapes]
    if not FIRST:
        kernels = [kernel.transpose((2, 3, 1, 0) if kernel.ndim > 2 else (1, 0)) for kernel in kernels]
    sizes = (6, 6, 4)
    return {name: {NAMES[3]: kernel, "bias": np.zeros(size, np.float32)}
            for name, kernel, size in zip(NAMES, kernels, sizes)}

def batch(key, n=8):
    draw = np.random.default_rng(1)
    return {"image": draw.normal(size=(n, 3, 6, 6)).astype(np.float32), "label": draw.integers(0, 4, n)}

def loss(variables, batch):
    x = batch["image"] if FIRST else batch["image"].transpose(0, 2, 3, 1)
    order = ("NCHW", "OIHW", "NCHW") if FIRST else ("NHWC", "HWIO", "NHWC")
    for name, function in zip(NAMES[:2], (jax.nn.relu, FUNCTION)):
        own = variables[name]
        with jax.named_scope(name):
            x = jax.lax.conv_general_dilated(x, own[NAMES[3]], (1, 1), "SAME", dimension_numbers=order)
            x = function(x + (own["bias"][None, :, None, None] if FIRST else own["bias"][None, None, None]))
    x = x.mean((2, 3) if FIRST else (1, 2))
    own = variables[NAMES[2]]
    with jax.named_scope(NAMES[2]):
        x = x @ (own[NAMES[3]].T if FIRST else own[NAMES[3]]) + own["bias"][None]
    return -jnp.take_along_axis(jax.nn.log_softmax(x), batch["label"][:, None], 1).mean()
"""


def port(*names: str, function: str = "jax.nn.relu") -> str:
    """The program with channels last, and other names."""
    other = REFERENCE.replace('NAMES = ("layers_0", "layers_1", "head", "weight")', f"NAMES = {names!r}")
    return other.replace("FIRST = True", "FIRST = False").replace("FUNCTION = jax.nn.relu", f"FUNCTION = {function}")


def run(folder: Path, name: str, program: str) -> Path:
    (folder / f"{name}.py").write_text(program)
    made = gradscope(
        "train",
        folder / f"{name}.py",
        "--optimizer",
        "momentum(0.1, 0.9)",
        "--steps",
        "3",
        "--every",
        "1",
        "-o",
        folder / name,
        folder=folder,
    )
    assert made.status == 0, made.errors
    return folder / name


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("runs"), "reference", REFERENCE)


@pytest.mark.slow
@sampled(
    "names",
    [("Conv_0", "Conv_1", "Dense_0", "kernel"), ("layers_1", "layers_2", "layers_3", "weight")],
    ids=["other names", "names of other layers"],
)
def test_the_run_of_a_port_is_the_same(reference: Path, tmp_path: Path, names: tuple[str, ...]) -> None:
    found = gradscope("compare", reference, run(tmp_path, "port", port(*names)), folder=tmp_path)
    assert found.status == 0, found.output
    assert "As far as statistics tell, 3 steps the same" in found.output


def test_a_fault_of_a_port_is_told_by_the_names_of_both(reference: Path, tmp_path: Path) -> None:
    candidate = run(tmp_path, "port", port("Conv_0", "Conv_1", "Dense_0", "kernel", function="jnp.tanh"))
    found = gradscope("compare", reference, candidate, folder=tmp_path)
    assert found.status == 1
    sentence = " ".join(found.output.split())
    assert "step 0 differs, first in the activations: `activation/layers_1` (`Conv_1` in the candidate)" in sentence
    assert re.search(r"gradients \d+ of \d+ activation_grad/head", sentence), "the last layer is the first backward"


@pytest.mark.slow
def test_a_parameter_of_other_values_is_told_of_the_layer_that_uses_it(reference: Path, tmp_path: Path) -> None:
    program = port("Conv_0", "Conv_1", "Dense_0", "kernel").replace(
        "sizes = (6, 6, 4)", "sizes = (6, 6, 4); kernels[1] = kernels[1] * 1.5"
    )
    found = gradscope("compare", reference, run(tmp_path, "port", program), folder=tmp_path)
    assert found.status == 1
    sentence = " ".join(found.output.split())
    assert "first in the parameters: `param/layers_1/weight` (`Conv_1/kernel` in the candidate)" in sentence


@pytest.mark.slow
def test_other_values_are_told_under_their_names(reference: Path, tmp_path: Path) -> None:
    program = REFERENCE.replace("default_rng(0)", "default_rng(5)")
    found = gradscope("compare", reference, run(tmp_path, "other", program), folder=tmp_path)
    assert found.status == 1
    assert "first in the parameters: `param/layers_0/weight`, rel_l2" in " ".join(found.output.split())


@pytest.mark.slow
def test_the_page_of_both_runs_has_the_tensors_of_the_port_beside_those_of_the_reference(
    reference: Path, tmp_path: Path
) -> None:
    candidate = run(tmp_path, "port", port("Conv_0", "Conv_1", "Dense_0", "kernel"))
    made = gradscope("report", reference, candidate, "-o", tmp_path / "page.html", folder=tmp_path)
    assert made.status == 0, made.errors
    content, _ = content_of((tmp_path / "page.html").read_text())
    counterparts = content["differences"][0]["counterparts"]
    assert len(counterparts) > 20, "parameters, gradients, slots, updates and layers"
    assert None not in counterparts.values()
