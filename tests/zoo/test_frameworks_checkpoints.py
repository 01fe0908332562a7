"""Checkpoints of frameworks' modules: saved by the framework, and there again in what the module is run with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from gradscope.capture.preparation import model_arguments
from gradscope.errors import DumpError
from gradscope.frameworks.inputspec import parse_input
from gradscope.frameworks.request import Request
from gradscope.tracing.checkpoints import CheckpointRequest
from gradscope.tracing.loader import load_model

LINEN = """
import flax.linen as nn

class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(2)(nn.Dropout(0.5, deterministic=False)(nn.BatchNorm(use_running_average=False)(x)))

net = Net()
"""

EQUINOX = """
import equinox as eqx
import jax

class Net(eqx.Module):
    mlp: eqx.nn.MLP
    scale: float

    def __init__(self, seed):
        self.mlp, self.scale = eqx.nn.MLP(4, 2, 8, 1, key=jax.random.key(seed)), float(seed)

    def __call__(self, x):
        return self.mlp(x) * self.scale

net = Net(1)
"""

KERAS = """
import keras

net = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, name="a"), keras.layers.Dense(2, name="b")])
"""


def variables(path: Path | None) -> Any:
    """The variables that `gradscope dump net.py:net --checkpoint PATH` runs with."""
    request = Request(inputs=(parse_input("float32[8,4]"),), loss="mean", checkpoint=path)
    model = load_model("net.py:net", request)
    checkpoint = None if path is None else CheckpointRequest(path=path)
    return model_arguments(model, seed=0, checkpoint=checkpoint).make()[0]


def test_linen_variables_come_from_msgpack_and_random_keys_from_init(folder: Path) -> None:
    serialization = pytest.importorskip("flax.serialization", reason="flax is not installed")
    (folder / "net.py").write_text(LINEN)
    made = variables(None)
    saved = {name: jax.tree.map(lambda leaf: leaf + 1, tree) for name, tree in made.items() if name != "rngs"}
    (folder / "saved.msgpack").write_bytes(serialization.to_bytes(saved))
    found = variables(folder / "saved.msgpack")
    assert jax.tree.structure(found) == jax.tree.structure(made)
    jax.tree.map(np.testing.assert_array_equal, {name: found[name] for name in saved}, saved)
    assert set(made) - set(saved) == {"rngs"}
    jax.tree.map(lambda one, other: np.testing.assert_array_equal(*map(jax.random.key_data, (one, other))),
                 found["rngs"], made["rngs"])  # fmt: skip


def test_an_equinox_module_reads_its_own_format(folder: Path) -> None:
    eqx = pytest.importorskip("equinox", reason="equinox is not installed")
    (folder / "net.py").write_text(EQUINOX)
    variables(None)
    mlp = eqx.nn.MLP(4, 2, 8, 1, key=jax.random.key(2))
    with (folder / "saved.eqx").open("wb") as file:
        eqx.tree_serialise_leaves(file, (mlp, 2.0))  # the fields of a module in their order
    found = variables(folder / "saved.eqx")["params"]
    np.testing.assert_array_equal(found["mlp/layers/0/weight"], mlp.layers[0].weight)
    np.testing.assert_array_equal(found["mlp/layers/1/bias"], mlp.layers[1].bias)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras' own
def test_a_keras_model_reads_its_own_weights(folder: Path) -> None:
    keras = pytest.importorskip("keras", reason="keras is not installed")
    (folder / "net.py").write_text(KERAS)
    other = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, name="a"), keras.layers.Dense(2, name="b")])
    other.save_weights(folder / "saved.weights.h5")
    found = variables(folder / "saved.weights.h5")["params"]
    assert len(found) == len(other.weights)
    for (name, one), weight in zip(found.items(), other.weights, strict=True):
        assert name.endswith(weight.path.partition("/")[2])
        np.testing.assert_array_equal(one, weight)


@pytest.mark.parametrize(("source", "name"), [(EQUINOX, "saved.eqx"), (KERAS, "saved.weights.h5")])
def test_a_file_that_is_not_of_the_module_is_refused(source: str, name: str, folder: Path) -> None:
    pytest.importorskip("equinox", reason="equinox is not installed")
    pytest.importorskip("keras", reason="keras is not installed")
    (folder / "net.py").write_text(source)
    (folder / name).write_bytes(b"something else")
    with pytest.raises(DumpError, match="is no checkpoint of this module"):
        variables(folder / name)
