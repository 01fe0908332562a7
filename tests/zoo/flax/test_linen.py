"""Flax Linen modules: their gradients are JAX's, their activations Flax's own, whatever they are lifted by."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from gradscope.errors import ModelError, UsageError
from tests.zoo import agreement

pytest.importorskip("flax", reason="flax is not installed: pip install 'gradscope-jax[flax]'")
import jax
import jax.numpy as jnp

from tests.zoo.flax.linen import captured, unrolled, variables_of

NET = """
import flax.linen as nn
import jax.numpy as jnp

class Block(nn.Module):
    width: int
    @nn.compact
    def __call__(self, x, train):
        x = nn.BatchNorm(use_running_average=not train, name="norm")(nn.Dense(self.width, name="fc")(x))
        self.sow("intermediates", "normed", x)
        return nn.Dropout(0.5, deterministic=not train, name="drop")(nn.relu(x))

class Net(nn.Module):
    classes: int = 5
    @nn.compact
    def __call__(self, x, *, scale, train):
        x = self.perturb("entry", Block(8, name="first")(x, train))
        x = Block(8, name="second")(x * scale[:, None], train)
        return {"features": x, "logits": nn.Dense(self.classes, name="head")(x)}

net = Net()

class Layer(nn.Module):
    @nn.compact
    def __call__(self, x, _):
        return nn.gelu(self.perturb("hidden", nn.Dense(x.shape[-1], name="fc")(x))) + x, None

class Lifted(nn.Module):
    @nn.compact
    def __call__(self, x):
        axes = {"params": 0, "intermediates": 0, "perturbations": 0}
        scanned = nn.scan(Layer, variable_axes=axes, split_rngs={"params": True}, length=3)
        x, _ = scanned(name="layers")(x, None)
        x, _ = nn.remat(Layer)(name="again")(x, None)
        x, _ = nn.jit(Layer)(name="jitted")(x, None)
        heads = nn.vmap(nn.Dense, variable_axes=axes, split_rngs={"params": True}, in_axes=None, axis_size=2)
        x = heads(4, name="heads")(x)
        table = nn.Embed(4, 4, name="table")
        return table.attend(table(jnp.argmax(x, -1)) + x)

class Normed(nn.Module):
    @nn.compact
    def __call__(self, x, _):
        x = nn.BatchNorm(use_running_average=False, name="norm")(nn.Dense(x.shape[-1], name="fc")(x))
        return nn.Dropout(0.5, deterministic=False, name="drop")(nn.gelu(x)), None

class Deep(nn.Module):
    def setup(self):
        axes = {"params": 0, "batch_stats": 0, "intermediates": 0}
        split = {"params": True, "dropout": True}
        self.layers = nn.scan(nn.remat(Normed), variable_axes=axes, split_rngs=split, length=3)()
        self.rnn = nn.RNN(nn.SimpleCell(4))
        self.tied = nn.Dense(4)
    def __call__(self, x):
        x, _ = self.layers(self.tied(x), None)
        return self.head(self.tied(self.rnn(x)))
    def head(self, x):
        return jnp.tanh(x)

broken = Net(classes="five")
"""


def test_gradients_activations_and_collections_are_flaxs_own(folder: Path) -> None:
    seen = agreement.dump(
        f"{agreement.source(folder, NET)}:Net()", "float32[6,7]", "scale=float32[6]:1..2", loss="cross-entropy"
    )
    variables, batch = variables_of(seen), agreement.family(seen, "input")
    rngs, params = variables.pop("rngs"), variables.pop("params")
    from net import Net

    def loss(params: Any) -> Any:
        outputs, updated = Net().apply(
            {"params": params, **variables}, batch["x"], scale=batch["scale"], train=True, rngs=rngs,
            mutable=["batch_stats", "intermediates"], capture_intermediates=True,
        )  # fmt: skip
        return agreement.cross_entropy(outputs["logits"], batch["labels"]), (outputs, updated)

    (value, (outputs, updated)), gradients = jax.value_and_grad(loss, has_aux=True)(params)
    assert seen.loss == pytest.approx(float(value), rel=1e-6)
    agreement.assert_gradients(seen, gradients)
    aux = agreement.family(seen, "aux")
    agreement.assert_same_tensors(
        {name: value for name, value in aux.items() if not name.startswith("intermediates")},
        agreement.by_path({"batch_stats": updated["batch_stats"], "output": outputs}),
    )
    expected = captured(updated["intermediates"], "Net")
    del expected["Net"]["features"]  # it leaves beside the loss: an auxiliary output, held above
    agreement.assert_activations(seen, expected)
    agreement.assert_layers_hold_parameters(seen)


def test_gradients_of_activations_are_those_of_perturb(folder: Path) -> None:
    seen = agreement.dump(
        f"{agreement.source(folder, NET)}:Net()", "float32[6,7]", "scale=float32[6]:1..2", loss="cross-entropy"
    )
    variables, batch = variables_of(seen), agreement.family(seen, "input")
    rngs = variables.pop("rngs")
    from net import Net

    def loss(entry: Any) -> Any:
        outputs, _ = Net().apply(
            {**variables, "perturbations": {"entry": entry}}, batch["x"], scale=batch["scale"], train=True, rngs=rngs,
            mutable=["batch_stats"],
        )  # fmt: skip
        return agreement.cross_entropy(outputs["logits"], batch["labels"])

    expected = jax.grad(loss)(jnp.zeros((6, 8)))
    agreement.assert_same_tensors({"first": seen["activation_grad/first"]}, {"first": expected})


def test_lifted_modules_are_named_and_measured_inside_and_out(folder: Path) -> None:
    seen = agreement.dump(f"{agreement.source(folder, NET)}:Lifted", "float32[2,3,4]", loss="mse")
    from net import Lifted

    params, batch = agreement.nested(agreement.family(seen, "param")), agreement.family(seen, "input")
    hidden = {name: {"hidden": jnp.zeros((2, 3, 4))} for name in ("again", "jitted")}
    hidden["layers"] = {"hidden": jnp.zeros((3, 2, 3, 4))}

    def loss(params: Any, hidden: Any) -> Any:
        variables = {"params": params, "perturbations": hidden}
        outputs, updated = Lifted().apply(
            variables, batch["x"], mutable=["intermediates"], capture_intermediates=True
        )  # fmt: skip
        return jnp.square(outputs - batch["labels"]).mean(), updated["intermediates"]

    (gradients, of_hidden), intermediates = jax.grad(loss, argnums=(0, 1), has_aux=True)(params, hidden)
    agreement.assert_gradients(seen, gradients)
    agreement.assert_layers_hold_parameters(seen)
    expected = captured(intermediates, "Lifted")
    assert {"again/fc", "jitted/fc", "heads", "table"} <= expected.keys()
    agreement.assert_activations(seen, unrolled(expected, "layers", 3))
    perturbed = {f"{name}/fc": each["hidden"] for name, each in of_hidden.items()}
    expected = unrolled(perturbed, "layers", 3)
    found = agreement.family(seen, "activation_grad")
    agreement.assert_same_tensors({name: found[name] for name in expected}, expected)
    assert "table.attend" in agreement.family(seen, "activation")


def test_scanned_and_checkpointed_modules_with_state_and_keys_have_flaxs_values(
    folder: Path,
) -> None:
    seen = agreement.dump(f"{agreement.source(folder, NET)}:Deep", "float32[2,3,4]", loss="mse")
    variables, batch = variables_of(seen), agreement.family(seen, "input")
    rngs, params = variables.pop("rngs"), variables.pop("params")
    from net import Deep

    def loss(params: Any) -> Any:
        outputs, updated = Deep().apply(
            {"params": params, **variables}, batch["x"], rngs=rngs,
            mutable=["batch_stats", "intermediates"], capture_intermediates=True,
        )  # fmt: skip
        return jnp.square(outputs - batch["labels"]).mean(), updated

    gradients, updated = jax.grad(loss, has_aux=True)(params)
    agreement.assert_gradients(seen, gradients)
    agreement.assert_layers_hold_parameters(seen)
    updates = {f"batch_stats/{name}": each for name, each in agreement.by_path(updated["batch_stats"]).items()}
    aux = agreement.family(seen, "aux")
    agreement.assert_same_tensors({name: aux[name] for name in updates}, updates)
    expected = unrolled(captured(updated["intermediates"], "Deep"), "layers", 3)
    assert {
        f"layers[{iteration}]/{part}" for iteration in range(3) for part in ("fc", "norm", "drop")
    } < expected.keys()
    assert {"tied", "tied#2", "rnn", "Deep"} < expected.keys()
    expected = {name: value for name, value in expected.items() if "rnn/" not in name}
    agreement.assert_activations(seen, expected)
    assert {f"rnn/cell[{iteration}]" for iteration in range(3)} <= {layer.path for layer in seen.layers}


def test_a_module_in_evaluation_keeps_its_running_averages_and_draws_nothing(folder: Path) -> None:
    target = f"{agreement.source(folder, NET)}:net"
    seen = agreement.dump(target, "float32[6,7]", "scale=float32[6]:1", loss="sum", train=False)
    variables, batch = variables_of(seen), agreement.family(seen, "input")
    from net import net

    own = {name: collection for name, collection in variables.items() if name != "rngs"}
    outputs = net.apply(own, batch["x"], scale=batch["scale"], train=False)
    assert set(batch) == {"x", "scale"}
    assert seen.loss == pytest.approx(float(outputs["logits"].sum() + outputs["features"].sum()), rel=1e-5)
    stats = agreement.family(seen, "state")
    assert not any(name.startswith("batch_stats") for name in agreement.family(seen, "aux"))
    assert {name.partition("/")[0] for name in stats} == {"batch_stats"}


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        ((), "Net takes (x, *, scale, train), and received no --input"),
        (("float32[6,7]",), "and received float32[6,7]"),
        (("float32[6,7]", "float32[6]"), "and received float32[6,7], float32[6]"),
        (("float32[6,7]", "x=float32[6,7]", "scale=float32[6]"), "and received float32[6,7], x=float32[6,7]"),
    ],
)
def test_inputs_that_do_not_fit_are_answered_with_the_signature(
    folder: Path, inputs: tuple[str, ...], says: str
) -> None:
    with pytest.raises(UsageError, match=re.escape(says)):
        agreement.dump(f"{agreement.source(folder, NET)}:Net", *inputs)


def test_a_module_that_fails_states_the_users_line(folder: Path) -> None:
    with pytest.raises(ModelError, match=r"^init of net.broken: TypeError") as failed:
        agreement.dump(f"{agreement.source(folder, NET)}:broken", "float32[6,7]", "scale=float32[6]")
    assert "logits" in failed.value.user_frames


def test_a_file_of_modules_is_refused_with_how_to_name_one(folder: Path) -> None:
    with pytest.raises(ModelError) as failed:
        agreement.dump(agreement.source(folder, NET), "float32[6,7]")
    assert failed.value.hint == "to run a framework's module, name it: FILE.py:broken"


CALLED_FROM_ELSEWHERE = """
import flax.linen as nn

class Coder(nn.Module):
    def setup(self):
        self.fc1, self.fc2 = nn.Dense(3), nn.Dense(4)
    def encode(self, x):
        return self.fc1(x)
    def decode(self, x):
        return self.fc2(x)
    def __call__(self, x):
        return self.decode(self.encode(x))

class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        coder = Coder(name="coder")
        x = coder(coder.decode(coder.encode(x)))
        x = nn.Sequential([nn.Dense(4), nn.relu, nn.Dense(4)])(x)
        return nn.RNN(nn.SimpleCell(2))(x.reshape(2, 2, 2))
"""


def test_a_module_has_the_name_of_its_parameters_whoever_calls_it(folder: Path) -> None:
    seen = agreement.dump(f"{agreement.source(folder, CALLED_FROM_ELSEWHERE)}:Net", "float32[2,4]", loss="mse")
    agreement.assert_layers_hold_parameters(seen)
    assert [layer.path for layer in seen.layers if "SimpleCell" not in layer.path] == [
        "Net", "coder.encode", "coder/fc1", "coder.decode", "coder/fc2",
        "coder", "coder.encode#2", "coder/fc1#2", "coder.decode#2", "coder/fc2#2",
        "Sequential_0", "Dense_0", "Dense_1", "RNN_0", "loss",
    ]  # fmt: skip
    cells = {layer.path for layer in seen.layers if "SimpleCell" in layer.path and "[0]" in layer.path}
    assert cells == {"SimpleCell_0[0]", "SimpleCell_0[0]/i", "SimpleCell_0[0]/h"}


BOUND = """
import flax.linen as nn, jax, jax.numpy as jnp

class Coder(nn.Module):
    def setup(self):
        self.fc = nn.Dense(3)
    def encode(self, x):
        return self.fc(x)

class Net(nn.Module):
    def setup(self):
        self.coder = Coder()
    def __call__(self, x):
        return self.coder.encode(x)

def init(key):
    return Net().init(key, jnp.ones((1, 4)))

def batch(key, size):
    return {"x": jax.random.normal(key, (size, 4))}

def loss(variables, batch):
    return jnp.square(Net().bind(variables).coder.encode(batch["x"])).mean()
"""


def test_a_module_that_is_bound_to_variables_has_the_same_names(folder: Path) -> None:
    seen = agreement.dump(agreement.source(folder, BOUND))
    assert [layer.path for layer in seen.layers if layer.params] == ["coder.encode", "coder/fc"]


#: Blocks whose shortcut is their input as it is, in ResNet18.
SHORTCUTS = {f"layers_{number}/ResNetSkipConnection_0" for number in (2, 3, 5, 7, 9)}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("name", "arguments", "layers", "idle"),
    [
        ("ResNet18", {"n_classes": 10}, 74, SHORTCUTS),
        ("ResNeSt50", {"n_classes": 10, "stage_sizes": [1, 1], "hidden_sizes": [8, 8]}, 47, set[str]()),
    ],
)
def test_models_of_jax_resnet(folder: Path, name: str, arguments: dict[str, Any], layers: int, idle: set[str]) -> None:
    jax_resnet = pytest.importorskip(
        "jax_resnet", reason="jax-resnet is not installed: pip install 'gradscope-jax[zoo]'"
    )
    call = ", ".join(f"{name}={value}" for name, value in arguments.items())
    seen = agreement.dump(f"jax_resnet:{name}({call})", "float64[2,32,32,3]", loss="cross-entropy")
    variables, batch = variables_of(seen), agreement.family(seen, "input")

    def loss(params: Any) -> Any:
        own = {"params": params, "batch_stats": variables["batch_stats"]}
        logits, updated = getattr(jax_resnet, name)(**arguments).apply(
            own, batch["x"], mutable=["batch_stats", "intermediates"], capture_intermediates=True
        )  # fmt: skip
        return agreement.cross_entropy(logits, batch["labels"]), updated["intermediates"]

    (value, intermediates), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(variables["params"])
    assert seen.loss == pytest.approx(float(value), rel=1e-5)
    agreement.assert_gradients(seen, gradients)
    agreement.assert_layers_hold_parameters(seen)
    expected = captured(intermediates, "Sequential")
    assert len(expected.keys() - idle) == layers
    agreement.assert_activations(seen, expected, idle)
