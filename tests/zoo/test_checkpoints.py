"""Checkpoints of frameworks' modules: saved by the framework, and there again in what the module is run with."""

from __future__ import annotations

import json
import re
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradscope.capturing.execution.arguments import model_arguments
from gradscope.errors import DumpError, UsageError
from gradscope.frameworks.modules.input_spec import parse_input
from gradscope.frameworks.modules.request import Request
from gradscope.tracing.data.renaming.checkpoint_request import CheckpointRequest
from gradscope.tracing.data.renaming.key_map import KeyMap
from gradscope.tracing.loading.loader import load_model
from gradscope.tracing.loading.module_models import with_array_variables
from gradscope.tracing.loading.own_formats import restored

#: What Keras does when it saves.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

LINEN = """
import flax.linen as nn

class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(2)(nn.Dropout(0.5, deterministic=False)(nn.BatchNorm(use_running_average=False)(x)))

net = Net()
"""

NNX = """
from flax import nnx

net = nnx.Sequential(nnx.Linear(4, 3, rngs=nnx.Rngs(0)), nnx.Dropout(0.5, rngs=nnx.Rngs(1)))
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

layers = [keras.layers.Dense(3, name="a"), keras.layers.Dense(2, name="b")]
net = keras.Sequential([keras.Input((4,)), *layers])

class Late(keras.Sequential):
    def __init__(self):
        super().__init__([keras.layers.Dense(3, name="a"), keras.layers.Dense(2, name="b")])
"""


def variables(path: Path | None, name: str = "net", key_map: KeyMap | None = None) -> Any:
    """The variables that `gradscope dump net.py:NAME --checkpoint PATH` runs with."""
    request = Request(inputs=(parse_input("float32[8,4]"),), loss="mean", checkpoint=path)
    model = load_model(f"net.py:{name}", request)
    checkpoint = None if path is None else CheckpointRequest(path=path, key_map=key_map or KeyMap())
    return model_arguments(model, seed=0, checkpoint=checkpoint).make()[0]


def test_linen_variables_come_from_msgpack_and_random_keys_from_init(folder: Path) -> None:
    serialization = pytest.importorskip("flax.serialization", reason="flax is not installed")
    (folder / "net.py").write_text(LINEN)
    made = variables(None)
    saved = {name: jax.tree.map(lambda leaf: leaf + 1, tree) for name, tree in made.items() if name != "rngs"}
    (folder / "saved.flax").write_bytes(serialization.to_bytes(saved))  # a name of the user's own
    found = variables(folder / "saved.flax")
    assert jax.tree.structure(found) == jax.tree.structure(made)
    jax.tree.map(np.testing.assert_array_equal, {name: found[name] for name in saved}, saved)
    assert set(made) - set(saved) == {"rngs"}
    jax.tree.map(lambda one, other: np.testing.assert_array_equal(*map(jax.random.key_data, (one, other))),
                 found["rngs"], made["rngs"])  # fmt: skip


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("manager", ["Orbax", "Orbax, items", "Flax", "Flax without Orbax"])
def test_the_folder_of_a_run_stands_for_its_last_training_state(
    folder: Path, manager: str, caplog: pytest.LogCaptureFixture
) -> None:
    flax = pytest.importorskip("flax", reason="flax is not installed")
    orbax = pytest.importorskip("orbax.checkpoint", reason="orbax is not installed")
    optax = pytest.importorskip("optax", reason="optax is not installed")
    from flax.training import checkpoints, train_state

    class State(train_state.TrainState):
        batch_stats: Any

    (folder / "net.py").write_text(LINEN)
    made = variables(None)
    state = State.create(apply_fn=None, params=made["params"], tx=optax.adam(1e-3), batch_stats=made["batch_stats"])
    states = {step: state.replace(params=jax.tree.map(lambda a, step=step: a + step, state.params)) for step in (9, 10)}
    for step, each in states.items():
        if manager.startswith("Orbax"):
            items = {"params": each.params, "batch_stats": each.batch_stats, "opt_state": each.opt_state}
            composite = orbax.args.Composite(**{name: orbax.args.StandardSave(item) for name, item in items.items()})
            with orbax.CheckpointManager(folder / "run") as written:
                written.save(step, args=composite if "items" in manager else orbax.args.StandardSave(each))
        else:
            flax.config.update("flax_use_orbax_checkpointing", manager == "Flax")
            checkpoints.save_checkpoint(folder / "run", each, step, keep=2)
    flax.config.update("flax_use_orbax_checkpointing", True)
    caplog.clear()
    found = variables(folder / "run")
    assert not caplog.records
    jax.tree.map(np.testing.assert_array_equal, found["params"], states[10].params)
    jax.tree.map(np.testing.assert_array_equal, found["batch_stats"], states[10].batch_stats)


def test_the_state_of_an_nnx_module_is_restored_with_its_random_keys(folder: Path) -> None:
    nnx = pytest.importorskip("flax.nnx", reason="flax is not installed")
    orbax = pytest.importorskip("orbax.checkpoint", reason="orbax is not installed")
    (folder / "net.py").write_text(NNX)
    made = variables(None)
    nets = {"saved": nnx.Rngs(6), "of_another_kind": nnx.Rngs(jax.random.key(6, impl="rbg"))}
    for name, rngs in nets.items():
        net = nnx.Sequential(nnx.Linear(4, 3, rngs=nnx.Rngs(5)), nnx.Dropout(0.5, rngs=rngs))
        net(jnp.ones((1, 4)))
        with orbax.StandardCheckpointer() as checkpointer:
            checkpointer.save(folder / name, {"model": nnx.state(net), "step": 3})
        found = variables(folder / name)
        assert jax.tree.structure(found) == jax.tree.structure(made)
        np.testing.assert_array_equal(found["params"]["layers/0/kernel"], net.layers[0].kernel)
        assert found["rngs"]["layers/1/rngs/count"] == net.layers[1].rngs.count[...] == 1
        expected = net.layers[1].rngs.key[...] if name == "saved" else made["rngs"]["layers/1/rngs/key"]
        assert found["rngs"]["layers/1/rngs/key"] == expected


def test_a_pytorch_file_is_refused_with_how_to_write_another(folder: Path) -> None:
    pytest.importorskip("flax", reason="flax is not installed")
    (folder / "net.py").write_text(LINEN)
    (folder / "saved.pt").write_bytes(b"PK")
    with pytest.raises(DumpError, match="which is never read") as refused:
        variables(folder / "saved.pt")
    assert "tree = torch.load(" in str(refused.value.hint)


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


def test_what_a_framework_reads_by_place_is_not_renamed(folder: Path) -> None:
    eqx = pytest.importorskip("equinox", reason="equinox is not installed")
    (folder / "net.py").write_text(EQUINOX)
    variables(None)
    eqx.tree_serialise_leaves(folder / "saved.eqx", (eqx.nn.MLP(4, 2, 8, 1, key=jax.random.key(2)), 2.0))
    with pytest.raises(UsageError, match="was read by the model's framework, without tensor names"):
        variables(folder / "saved.eqx", key_map=KeyMap(((re.compile("a"), "b"),)))


def test_a_line_of_what_an_equinox_module_is_built_of_may_be_before_its_leaves(folder: Path) -> None:
    eqx = pytest.importorskip("equinox", reason="equinox is not installed")
    (folder / "net.py").write_text(EQUINOX)
    variables(None)
    mlp = eqx.nn.MLP(4, 2, 8, 1, key=jax.random.key(2))
    with (folder / "saved.eqx").open("wb") as file:
        file.write(b'{"width": 8}\n')
        eqx.tree_serialise_leaves(file, (mlp, 2.0))
    np.testing.assert_array_equal(
        variables(folder / "saved.eqx")["params"]["mlp/layers/0/weight"], mlp.layers[0].weight
    )  # fmt: skip


@pytest.mark.parametrize("saved", ["net", "(net, 3.0)"])
def test_an_equinox_file_of_another_module_is_refused_with_all_mismatches(folder: Path, saved: str) -> None:
    eqx = pytest.importorskip("equinox", reason="equinox is not installed")
    (folder / "net.py").write_text(EQUINOX)
    variables(None)
    mlp = eqx.nn.MLP(4, 2, 7, 1, key=jax.random.key(2), dtype=jnp.bfloat16)
    with (folder / "saved.eqx").open("wb") as file:
        eqx.tree_serialise_leaves(file, (mlp, *((2.0, 3.0) if saved != "net" else ())))
    with pytest.raises(DumpError) as refused:
        variables(folder / "saved.eqx")
    parts = [f"mlp/layers/{layer}/{part}" for layer in (0, 1) for part in ("weight", "bias")]
    expected = [f"{part} is bfloat16, expected float32" for part in parts]
    expected += [
        "mlp/layers/0/weight has shape [7, 4], expected [8, 4]",
        "mlp/layers/0/bias has shape [7], expected [8]",
        "mlp/layers/1/weight has shape [2, 7], expected [2, 8]",
        "it lacks scale float32[]" if saved == "net" else "the model has no tensor 6 float64[]",
    ]
    start = f"{folder / 'saved.eqx'} is not a checkpoint of this module: "
    assert refused.value.message.startswith(start)
    assert sorted(refused.value.message.removeprefix(start).split("; ")) == sorted(expected)


STATEFUL = """
import equinox as eqx
import jax

class Net(eqx.Module):
    norm: eqx.nn.BatchNorm
    head: eqx.nn.Linear

    def __init__(self, key):
        self.norm, self.head = eqx.nn.BatchNorm(4, "batch", mode="batch"), eqx.nn.Linear(4, 2, key=key)

    def __call__(self, x, state):
        x, state = self.norm(x, state)
        return self.head(x), state

net = eqx.nn.make_with_state(Net)(jax.random.key(0))
alone = net[0]
"""


@pytest.mark.parametrize(
    ("name", "saved", "hint"),
    [
        ("net", "alone", "tensors of the model and none of its state: save the pair"),
        ("alone", "net", "if the file has a model and its state, name the pair"),
    ],
)
def test_a_model_saved_without_its_state_is_distinguished(folder: Path, name: str, saved: str, hint: str) -> None:
    eqx = pytest.importorskip("equinox", reason="equinox is not installed")
    (folder / "net.py").write_text(STATEFUL)
    load_model("net.py:net", Request(inputs=(parse_input("float32[8,4]"),)))
    import net as module

    eqx.tree_serialise_leaves(folder / "saved.eqx", getattr(module, saved))
    with pytest.raises(DumpError) as refused:
        variables(folder / "saved.eqx", name)
    assert hint in str(refused.value.hint)
    assert refused.value.message.endswith("it lacks state (3 tensors)") is (name == "net")


def test_a_pair_of_modules_is_not_one_of_a_module_and_its_state(folder: Path) -> None:
    eqx = pytest.importorskip("equinox", reason="equinox is not installed")
    mlp = eqx.nn.MLP(2, 2, 2, 0, key=jax.random.key(0))
    eqx.tree_serialise_leaves(folder / "saved.eqx", mlp)
    with pytest.raises(DumpError, match="it lacks 1/layers/0/") as refused:
        restored((mlp, mlp), folder / "saved.eqx", lambda: None)
    assert refused.value.hint is None


STATELESS = """
import equinox as eqx

class Net(eqx.Module):
    head: eqx.nn.Linear

    def __init__(self, key):
        self.head = eqx.nn.Linear(4, 2, key=key)

    def __call__(self, x):
        return self.head(x)
"""


def test_a_class_without_state_is_no_pair_in_the_hint_about_a_file_that_has_more(folder: Path) -> None:
    eqx = pytest.importorskip("equinox", reason="equinox is not installed")
    (folder / "net.py").write_text(STATELESS)
    heads = [eqx.nn.Linear(4, 2, key=jax.random.key(seed)) for seed in range(3)]
    eqx.tree_serialise_leaves(folder / "saved.eqx", (jnp.array(3), *heads))  # moments and a model
    with pytest.raises(DumpError) as refused:
        variables(folder / "saved.eqx", "Net()")
    assert "if the file has more than the model, such as an optimizer's state" in str(refused.value.hint)
    assert "pair" not in str(refused.value.hint)


def test_another_head_is_no_state_that_lacks(folder: Path) -> None:
    eqx = pytest.importorskip("equinox", reason="equinox is not installed")
    (folder / "net.py").write_text(EQUINOX)
    variables(None)
    eqx.tree_serialise_leaves(folder / "saved.eqx", (eqx.nn.MLP(4, 3, 8, 1, key=jax.random.key(2)), 2.0))
    with pytest.raises(DumpError, match="has shape") as refused:
        variables(folder / "saved.eqx")
    assert "state" not in str(refused.value.hint)
    assert "--keep-init) where gradscope reads the file by its names" in str(refused.value.hint)


FUNCTIONS = f"""{STATEFUL}
import jax.numpy as jnp

class Scaled(eqx.Module):
    net: eqx.nn.Linear
    scale: float = 1.0

def init(key):
    return Scaled(eqx.nn.Linear(4, 2, key=key))

def init_with_state(key):
    return eqx.nn.make_with_state(Net)(key)

def batch(key, size):
    return {{"x": jax.random.normal(key, (size, 4))}}

def loss(found, batch):
    if isinstance(found, tuple):
        net, state = found
        out, _ = jax.vmap(net, axis_name="batch", in_axes=(0, None), out_axes=(0, None))(batch["x"], state)
        return jnp.square(out).mean()
    return found.scale * jnp.square(jax.vmap(found.net)(batch["x"])).mean()
"""


@pytest.mark.parametrize("stateful", [False, True])
def test_a_file_of_leaves_is_read_into_what_init_returns(folder: Path, stateful: bool) -> None:
    # Weights before biases, as Equinox has them, and numbers that are no arrays, which it saves as well.
    eqx = pytest.importorskip("equinox", reason="equinox is not installed")
    (folder / "net.py").write_text(FUNCTIONS)
    model = load_model("net.py")
    import net as module

    init = module.init_with_state if stateful else module.init  # pyright: ignore[reportAttributeAccessIssue]
    saved = init(jax.random.key(5))
    saved = saved if stateful else eqx.tree_at(lambda tree: tree.scale, saved, 3.0)
    eqx.tree_serialise_leaves(folder / "saved.eqx", saved)
    model = with_array_variables(replace(model, init=init))
    found, batch = model_arguments(model, seed=0, checkpoint=CheckpointRequest(path=folder / "saved.eqx")).make()
    np.testing.assert_array_equal(model.loss(found, batch), module.loss(saved, batch))

    optimizer = {"count": np.zeros((), np.int32), "mu": np.zeros(3, np.float32)}
    eqx.tree_serialise_leaves(folder / "saved.eqx", (saved, optimizer))
    arguments = model_arguments(model, seed=0, checkpoint=CheckpointRequest(path=folder / "saved.eqx"))
    np.testing.assert_array_equal(model.loss(*arguments.make()), module.loss(saved, batch))
    (note,) = arguments.notes
    assert re.search(r"the first \d+ tensors are taken for the model's, as they fit, and 2 behind them left out;", note)

    eqx.tree_serialise_leaves(folder / "saved.eqx", (saved, saved))
    (note,) = model_arguments(model, seed=0, checkpoint=CheckpointRequest(path=folder / "saved.eqx")).notes
    assert re.search(r"behind them left out \(tensors \d+ to \d+ would fit, too\); a model that is not the first", note)

    for other in (optimizer, jax.tree.map(np.zeros_like, eqx.filter(saved, eqx.is_inexact_array))):
        eqx.tree_serialise_leaves(folder / "saved.eqx", (other, saved))
        arguments = model_arguments(model, seed=0, checkpoint=CheckpointRequest(path=folder / "saved.eqx"))
        np.testing.assert_array_equal(model.loss(*arguments.make()), module.loss(saved, batch))
        (note,) = arguments.notes
        assert re.search(
            r"tensors \d+ to \d+ are taken for the model's, as no others in a row fit, and \d+ beside", note
        )

    more = np.zeros((4, 4), np.float32)  # may be of more layers
    for other, place in (((saved, more), "1"), ((more, saved), "2"), ((more, saved, saved), None)):
        eqx.tree_serialise_leaves(folder / "saved.eqx", other)
        with pytest.raises(DumpError, match="the model has no tensor") as refused:
            model_arguments(model, seed=0, checkpoint=CheckpointRequest(path=folder / "saved.eqx"))
        said = (
            rf"its tensors {place} to \d+ fit, and the \d+ others may be more layers of the same model: save the target"
        )
        assert re.match(said if place else "if the file has more", str(refused.value.hint)), refused.value.hint


def a_model(*layers: tuple[int, str]) -> Any:
    keras = pytest.importorskip("keras", reason="keras is not installed")
    return keras.Sequential([keras.Input((4,)), *(keras.layers.Dense(width, name=name) for width, name in layers)])


@pytest.mark.parametrize("name", ["saved.weights.h5", "saved.keras"])
@pytest.mark.parametrize("target", ["net", "Late"])
def test_a_keras_model_reads_its_own_weights(folder: Path, name: str, target: str) -> None:
    (folder / "net.py").write_text(KERAS)
    other = a_model((3, "a"), (2, "of another name"))
    if name == "saved.keras":
        other.compile("adam", "mse")
        other.save(folder / name)
    else:
        other.save_weights(folder / name)
    found = variables(folder / name, target)["params"]
    assert len(found) == len(other.weights)
    for (path, one), weight in zip(found.items(), other.weights, strict=True):
        assert path.rpartition("/")[2] == weight.name
        np.testing.assert_array_equal(one, weight)


def test_what_a_keras_file_would_build_is_not_looked_at(folder: Path) -> None:
    (folder / "net.py").write_text(KERAS)
    (folder / "trap.py").write_text("from pathlib import Path\nPath('sprung').touch()\nclass Net: ...\n")
    a_model((3, "a"), (2, "b")).save(folder / "made.keras")
    trap = {"module": "trap", "class_name": "Net", "config": {}, "registered_name": "trap>Net"}
    with zipfile.ZipFile(folder / "made.keras") as made, zipfile.ZipFile(folder / "saved.keras", "w") as saved:
        saved.writestr("model.weights.h5", made.read("model.weights.h5"))
        saved.writestr("config.json", json.dumps(trap))
    assert len(variables(folder / "saved.keras")["params"]) == 4
    assert not (folder / "sprung").exists()


@pytest.mark.parametrize("kind", ["array", "link"])
def test_a_keras_file_whose_numbers_lie_elsewhere_lacks_them(folder: Path, kind: str) -> None:
    h5py = pytest.importorskip("h5py", reason="h5py is not installed")
    (folder / "net.py").write_text(KERAS)
    (folder / "secret").write_bytes(bytes(48))
    a_model((3, "a"), (2, "b")).save_weights(folder / "saved.weights.h5")
    with h5py.File(folder / "saved.weights.h5", "r+") as file:
        weights = file["layers/dense/vars"]
        del weights["0"]
        if kind == "array":
            weights.create_dataset("0", (4, 3), "f4", external=[(str(folder / "secret"), 0, 48)])
        else:
            weights["0"] = h5py.ExternalLink(str(folder / "saved.weights.h5"), "/layers/dense/vars/1")
    with pytest.raises(DumpError, match=r"it lacks layers/dense/vars/0 \(a\) float32\[4, 3\]$"):
        variables(folder / "saved.weights.h5")


@pytest.mark.parametrize("name", ["saved.weights.h5", "saved.keras"])
def test_a_keras_file_of_another_model_is_refused_with_all_mismatches(folder: Path, name: str) -> None:
    (folder / "net.py").write_text(KERAS)
    other = a_model((5, "a"), (2, "b"), (1, "c"))
    (other.save if name == "saved.keras" else other.save_weights)(folder / name)
    with pytest.raises(DumpError) as refused:
        variables(folder / name)
    assert refused.value.message == f"{folder / name} is not a checkpoint of this module: " + "; ".join([
        "layers/dense/vars/0 (a) has shape [4, 5], expected [4, 3]",
        "layers/dense/vars/1 (a) has shape [5], expected [3]",
        "layers/dense_1/vars/0 (b) has shape [5, 2], expected [3, 2]",
        "the model has no layers/dense_2/vars/0 (c) float32[2, 1], layers/dense_2/vars/1 (c) float32[1]",
    ])  # fmt: skip


@pytest.mark.parametrize(
    ("source", "name"),
    [(EQUINOX, "saved.eqx"), (KERAS, "saved.weights.h5"), (KERAS, "saved.keras")],
    ids=["Equinox", "Keras' weights", "a whole model of Keras"],
)
@pytest.mark.parametrize("content", [None, b"something else"], ids=["missing", "damaged"])
def test_a_file_that_is_missing_or_damaged_is_refused(
    source: str, name: str, content: bytes | None, folder: Path
) -> None:
    pytest.importorskip("equinox", reason="equinox is not installed")
    pytest.importorskip("keras", reason="keras is not installed")
    (folder / "net.py").write_text(source)
    if content is not None:
        (folder / name).write_bytes(content)
    with pytest.raises(DumpError, match=re.escape(str(folder / name))):
        variables(folder / name)


def test_a_module_saved_in_another_type_is_read_by_its_names(folder: Path) -> None:
    eqx = pytest.importorskip("equinox", reason="equinox is not installed")
    (folder / "net.py").write_text(EQUINOX)
    variables(None)
    narrow = jax.tree_util.tree_map(
        lambda leaf: leaf.astype(jax.numpy.bfloat16) if eqx.is_array(leaf) else leaf,
        eqx.nn.MLP(4, 2, 8, 1, key=jax.random.key(2)),
    )
    eqx.tree_serialise_leaves(folder / "saved.eqx", (narrow, 2.0))
    with pytest.raises(DumpError, match="is bfloat16, expected float32") as refused:
        variables(folder / "saved.eqx")
    assert "it is of a module in another type" in str(refused.value.hint)
