"""What a program of NumPy writes is a reference without layers: a port's fault is found at its layer all the same."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs

_draw = np.random.default_rng(5).normal
FIRST, SECOND, TOP = (_draw(size=size).astype(np.float32) for size in ((6, 8), (8, 7), (7, 3)))
BIASES = [0.3 * _draw(size=size).astype(np.float32) for size in (8, 7, 3)]
X = _draw(size=(5, 6)).astype(np.float32)


def _reference(folder: Path, *, behind: bool = False) -> gs.Dump:
    """Three layers and their gradients by hand; `behind` has their values behind the activation functions."""
    kernels = {"a": FIRST, "b": SECOND, "c": TOP}
    tensors: dict[str, Any] = {"input/x": X}
    inputs, value = {}, X
    for (name, kernel), bias in zip(kernels.items(), BIASES, strict=True):
        inputs[name] = value
        made = value @ kernel + bias
        value = made if name == "c" else np.maximum(made, 0)
        tensors |= {f"activation/{name}": value if behind else made, f"param/{name}.W": kernel, f"param/{name}.b": bias}
    arriving = (2 * value / value.size).astype(np.float32)
    for name, kernel in reversed(kernels.items()):
        tensors |= {f"activation_grad/{name}": arriving} if not behind or name == "c" else {}
        tensors |= {f"param_grad/{name}.W": inputs[name].T @ arriving, f"param_grad/{name}.b": arriving.sum(0)}
        arriving = (arriving @ kernel.T) * (1 if name == "a" else inputs[name] > 0)
    tensors["input_grad/x"] = arriving
    np.savez(folder / "reference.npz", **tensors)
    return gs.load(folder / "reference.npz")


@cache
def _port(fault: str = "") -> gs.Dump:
    def loss(weights: Any, batch: Any) -> Any:
        x = batch["image"]
        for name in ("stem", "body", "head"):
            with jax.named_scope(name):
                kernel = weights[name]["kernel"]
                x = x @ (kernel[::-1] if fault == f"{name} flipped" else kernel) + weights[name]["bias"][None]
            if name != "head":
                x = jax.nn.leaky_relu(x, 0.1) if fault == f"{name} leaky" else jax.nn.relu(x)
        return jnp.square(x).mean()

    kernels = zip(("stem", "body", "head"), (FIRST, SECOND, TOP), BIASES, strict=True)
    weights = {name: {"kernel": kernel, "bias": bias} for name, kernel, bias in kernels}
    return gs.capture(loss, weights, {"image": X}, origins=False)


@pytest.mark.parametrize(
    ("fault", "first"), [("stem flipped", "a"), ("stem leaky", "b"), ("body flipped", "b"), ("body leaky", "c")]
)
def test_a_fault_is_found_at_its_layer(fault: str, first: str, tmp_path: Path) -> None:
    found = gs.compare(_reference(tmp_path), _port(fault))
    assert found.sentence.startswith(f"Forward first differs at `{first}` "), found.sentence


def test_a_right_port_is_the_same(tmp_path: Path) -> None:
    found = gs.compare(_reference(tmp_path), _port())
    assert found.verdict == "same", found.sentence


def test_values_on_other_sides_of_an_activation_function_are_no_pairs_by_their_names(tmp_path: Path) -> None:
    found = gs.compare(_reference(tmp_path, behind=True), _port())
    assert {row.status for row in found.rows} == {"same", "missing", "extra"}, found.sentence
