"""The map files of the guide on comparing read recurrent layers of PyTorch as they compute."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradscope as gs
from tests.integration.command import gradscope

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "comparing.md"
FEATURES, UNITS, BATCH, STEPS = 5, 16, 3, 4

PORT = """
import jax
import jax.numpy as jnp

SHAPES = {shapes}

def init(key):
    variables = dict()
    for name, shape in SHAPES.items():
        variables.setdefault(name[:2], dict())[name[3:]] = jnp.zeros(shape)
    return {{"params": variables}}

def batch(key, size):
    return {{"x": jnp.zeros((size, {steps}, {features}))}}

def loss(variables, batch):
    of, x = variables["params"], batch["x"]
    at = lambda name, value: value @ of[name]["kernel"] + of[name].get("bias", jnp.zeros({units}))[None]
    h = c = jnp.zeros((x.shape[0], {units}))
    for step in range(x.shape[1]):
        u = x[:, step]
{cell}
    return (h * jnp.arange({units}, dtype=jnp.float32)[None]).mean()
"""
LSTM = """
        gate = lambda name: at("i" + name, u) + at("h" + name, h)
        c = jax.nn.sigmoid(gate("f")) * c + jax.nn.sigmoid(gate("i")) * jnp.tanh(gate("g"))
        h = jax.nn.sigmoid(gate("o")) * jnp.tanh(c)
"""
GRU = """
        r = jax.nn.sigmoid(at("ir", u) + at("hr", h))
        z = jax.nn.sigmoid(at("iz", u) + at("hz", h))
        n = jnp.tanh(at("in", u) + r * at("hn", h))
        h = (1 - z) * n + z * h
"""


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def of_pytorch(kind: str, state: dict[str, np.ndarray[Any, Any]], x: np.ndarray[Any, Any]) -> float:
    """The loss by the formulas of PyTorch's documentation, of its packed weights, in float64."""
    wide = {name.removeprefix("rnn."): value.astype(np.float64) for name, value in state.items()}
    h = c = np.zeros((x.shape[0], UNITS))
    for step in range(x.shape[1]):
        given = x[:, step] @ wide["weight_ih_l0"].T + wide["bias_ih_l0"]
        own = h @ wide["weight_hh_l0"].T + wide["bias_hh_l0"]
        if kind == "lstm":
            i, f, g, o = np.split(given + own, 4, axis=1)
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            h = sigmoid(o) * np.tanh(c)
        else:
            (ir, iz, gn), (hr, hz, hn) = np.split(given, 3, axis=1), np.split(own, 3, axis=1)
            z = sigmoid(iz + hz)
            h = (1 - z) * np.tanh(gn + sigmoid(ir + hr) * hn) + z * h
    return float((h * np.arange(UNITS)).mean())


@pytest.mark.parametrize(
    ("kind", "gates", "biases", "cell"),
    [("lstm", "ifgo", ["hi", "hf", "hg", "ho"], LSTM), ("gru", "rzn", ["ir", "iz", "in", "hn"], GRU)],
)
def test_the_map_of_a_recurrent_layer_of_pytorch(
    tmp_path: Path, kind: str, gates: str, biases: list[str], cell: str
) -> None:
    (rules,) = re.findall(rf"<!-- tested: {kind} -->\n```toml\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    (tmp_path / "map.toml").write_text(rules)
    rng = np.random.default_rng(0)
    rows = len(gates) * UNITS
    state = {
        "rnn.weight_ih_l0": rng.normal(0, 0.5, (rows, FEATURES)).astype(np.float32),
        "rnn.weight_hh_l0": rng.normal(0, 0.5, (rows, UNITS)).astype(np.float32),
        "rnn.bias_ih_l0": rng.normal(0, 0.5, rows).astype(np.float32),
        "rnn.bias_hh_l0": rng.normal(0, 0.5, rows).astype(np.float32),
    }
    x = rng.normal(0, 1, (BATCH, STEPS, FEATURES)).astype(np.float32)
    np.savez(tmp_path / "state.npz", **state)
    np.savez(tmp_path / "batch.npz", x=x)
    shapes = {f"i{gate}/kernel": (FEATURES, UNITS) for gate in gates}
    shapes |= {f"h{gate}/kernel": (UNITS, UNITS) for gate in gates} | {f"{name}/bias": (UNITS,) for name in biases}
    text = PORT.format(shapes=shapes, steps=STEPS, features=FEATURES, units=UNITS, cell=cell)
    (tmp_path / "port.py").write_text(text)
    done = gradscope(
        "dump", "port.py", "--checkpoint", "state.npz", "--map", "map.toml", "--data", "batch.npz", "-o", "port.npz",
        folder=tmp_path,
    )  # fmt: skip
    assert done.status == 0, done.errors
    with gs.load(tmp_path / "port.npz") as dump:
        assert dump.manifest.loss == pytest.approx(of_pytorch(kind, state, x), rel=1e-5)
