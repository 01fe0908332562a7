"""The state of an Equinox module has the names of its layers, whether the loss takes it in a pair or on its own."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("equinox", reason="equinox is not installed: pip install 'gradscope-jax[equinox]'")
import equinox as eqx
import jax
import numpy as np

import gradscope as gs
from tests.integration.command import gradscope

MODEL = """
import equinox as eqx
import jax
import jax.numpy as jnp

class Net(eqx.Module):
    blocks: list
    norms: list
    def __init__(self, key):
        self.blocks = [eqx.nn.Linear(4, 4, key=each) for each in jax.random.split(key)]
        self.norms = [eqx.nn.BatchNorm(4, "batch", mode=mode) for mode in ("batch", "ema")]
    def __call__(self, x, state):
        for block, norm in zip(self.blocks, self.norms):
            x, state = norm(block(x), state)
        return jnp.tanh(x), state

def init(key):
    return eqx.nn.make_with_state(Net)(jax.random.key(7))

def batch(key, batch_size):
    return jax.random.normal(jax.random.key(5), (6, 4))

def loss(pair, x):
    return apart(*pair, x)

def apart(net, state, x):
    out, state = jax.vmap(net, axis_name="batch", in_axes=(0, None), out_axes=(0, None))(x, state)
    return jnp.square(out - 0.3).mean(), {"state": state, "largest": out.max()}
"""

#: The parts of the state by their names.
PARTS = {
    "norms/0/batch_counter", "norms/0/batch_state_index/0", "norms/0/batch_state_index/1",
    "norms/1/ema_first_time_index", "norms/1/ema_state_index/0", "norms/1/ema_state_index/1",
}  # fmt: skip


@pytest.fixture(name="model")
def _model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    (tmp_path / "with_states.py").write_text(MODEL, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "with_states", raising=False)
    return import_module("with_states")


def test_a_state_is_named_in_a_pair_and_as_an_argument_of_its_own(model: ModuleType) -> None:
    net, state = model.init(jax.random.key(0))
    x = model.batch(jax.random.key(1), 6)
    in_pair = gs.capture(model.loss, (net, state), x, has_aux=True)
    apart = gs.capture(model.apart, net, state, x, has_aux=True)
    last = gs.capture(lambda x, state, net: model.apart(net, state, x), x, state, net, argnums=-1, has_aux=True)
    for dump in (in_pair, apart, last):
        assert {key.removeprefix("state/state/") for key in dump if key.startswith("state/")} == PARTS
        assert {key.removeprefix("aux/state/") for key in dump if key.startswith("aux/")} == {*PARTS, "aux/largest"}
        assert "input/value" in dump
    (_, returned), gradients = eqx.filter_value_and_grad(lambda net: model.apart(net, state, x), has_aux=True)(net)
    for dump in (in_pair, apart, last):
        for path, norm in (("norms/0/batch_state_index", 0), ("norms/1/ema_state_index", 1)):
            expected = returned["state"].get(getattr(net.norms[norm], path.rpartition("/")[2]))
            for part in (0, 1):
                np.testing.assert_allclose(dump[f"aux/state/{path}/{part}"], expected[part], rtol=1e-5, atol=1e-6)
        gradient = dump["param_grad/blocks/0/weight"]
        np.testing.assert_allclose(gradient, gradients.blocks[0].weight, rtol=1e-4, atol=1e-6)


def test_states_of_two_modules_stay_what_the_loss_takes(model: ModuleType) -> None:
    net, state = model.init(jax.random.key(0))
    other = model.init(jax.random.key(2))[1]
    x = model.batch(jax.random.key(1), 6)

    def loss(net: Any, state: Any, other: Any, x: Any) -> Any:
        value, updated = model.apart(net, state, x)
        return value, (updated["state"], other)

    dump = gs.capture(loss, net, state, other, x, has_aux=True)
    assert not any(key.startswith("state/") for key in dump)
    assert any(key.startswith("input/other/") for key in dump)


@pytest.mark.parametrize("part", ["blocks", "norms"])
def test_the_state_of_more_than_the_module_stays_an_input(model: ModuleType, part: str) -> None:
    net, state = model.init(jax.random.key(0))
    x = model.batch(jax.random.key(1), 6)

    def loss(part: Any, state: Any, x: Any) -> Any:
        return (x * part.weight[:4]).mean(), state

    inner = net.blocks[0] if part == "blocks" else net.norms[0]
    inner = eqx.tree_at(lambda each: each.weight, inner, inner.weight.reshape(-1)[:4])
    dump = gs.capture(loss, inner, state, x, has_aux=True)
    assert not any(key.startswith("state/") for key in dump)
    assert any(key.startswith("input/state/") for key in dump)


def test_training_goes_on_from_the_state_that_the_loss_returned(tmp_path: Path, model: ModuleType) -> None:
    line = ("train", "with_states.py", "--steps", 3, "--optimizer", "sgd(0.0)", "-q", "-o", "run")
    assert gradscope(*line, folder=tmp_path).status == 0
    net, state = model.init(jax.random.key(0))
    x = model.batch(None, 6)
    for _ in range(3):
        state = model.apart(net, state, x)[1]["state"]
    with np.load(tmp_path / "run" / "state-000003.npz", allow_pickle=False) as stored:
        assert stored["state/state/norms/0/batch_counter"] == 3
        for path, index in (
            ("norms/0/batch_state_index", net.norms[0].batch_state_index),
            ("norms/1/ema_state_index", net.norms[1].ema_state_index),
        ):
            for part, expected in enumerate(state.get(index)):
                np.testing.assert_allclose(stored[f"state/state/{path}/{part}"], expected, rtol=1e-5)
