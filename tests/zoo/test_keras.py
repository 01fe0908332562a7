"""Keras models on JAX: functional, sequential and subclassed ones, compared with Keras' own layers and `jax.grad`."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from gradscope.capturing.execution.arguments import model_arguments
from gradscope.errors import UsageError
from gradscope.frameworks.modules.input_spec import InputSpec
from gradscope.frameworks.modules.request import Request
from gradscope.tracing.loading.loader import load_model
from gradscope.tracing.loading.module_models import with_array_variables
from tests.zoo import agreement

pytest.importorskip("keras", reason="keras is not installed: pip install 'gradscope-jax[keras]'")
import jax
import jax.numpy as jnp
import keras
import numpy as np

NET = """
import keras

class Net(keras.Model):
    def __init__(self, width=4):
        super().__init__(name="net")
        self.first = keras.layers.Dense(width, name="first")
        self.norm = keras.layers.BatchNormalization(name="norm")
        self.drop = keras.layers.Dropout(0.5, name="drop")
        self.last = keras.layers.Dense(3, name="last")
    def call(self, x, scale, training=False):
        x = self.drop(self.norm(self.first(x), training=training), training=training)
        return {"logits": self.last(x) * scale, "features": x}

left, right = keras.Input((4,), name="left"), keras.Input((4,), name="right")
joined = keras.layers.Concatenate(name="joined")([left, right])
paired = keras.Model([left, right], keras.layers.Dense(3, name="out")(joined))
named = keras.Model({"right": right, "left": left}, paired.outputs[0])
chain = keras.Sequential([keras.Input((4,)), keras.layers.Dense(5, "relu", name="a"), keras.layers.Dense(3, name="b")])
"""


@pytest.fixture(autouse=True)
def _names_from_the_beginning() -> None:
    """Keras numbers the models of a process."""
    keras.backend.clear_session()


def gradients_of(net: Any, seen: agreement.Dump, inputs: Any, *, training: bool) -> tuple[Any, Any]:
    """Value and gradients of cross-entropy by path, on the variables of a dump."""
    params = {name: jnp.asarray(each) for name, each in agreement.family(seen, "param").items()}
    others = [seen[f"state/non_trainable/{each.path}"] for each in net.non_trainable_variables]

    @jax.jit
    def loss(params: Any) -> Any:
        ordered = [params[each.path] for each in net.trainable_variables]
        logits, _ = net.stateless_call(ordered, others, inputs, training=training)
        return agreement.cross_entropy(logits, seen["input/labels"])

    return jax.value_and_grad(loss)(params)


def layers_of(net: Any, seen: agreement.Dump, inputs: Any) -> dict[str, Any]:
    """What every layer of a functional model returns in evaluation, by name, computed by Keras."""
    for variable in [*net.trainable_variables, *net.non_trainable_variables]:
        family = "param" if variable.trainable else "state/non_trainable"
        variable.assign(seen[f"{family}/{variable.path}"])
    layers = [layer for layer in net.layers if not isinstance(layer, keras.layers.InputLayer)]
    outputs = keras.Model(net.input, [layer.output for layer in layers])(inputs, training=False)
    return {layer.name: each for layer, each in zip(layers, outputs, strict=True)}


@pytest.mark.parametrize("name", ["paired", "named"])
def test_functional_models_say_their_inputs_themselves(folder: Path, name: str) -> None:
    seen = agreement.dump(f"{agreement.source(folder, NET)}:{name}", loss="cross-entropy")
    import net as module

    net = getattr(module, name)
    assert {key: value.shape for key, value in agreement.family(seen, "input").items()} == {
        "left": (8, 4), "right": (8, 4), "labels": (8,)
    }  # fmt: skip
    inputs = {name: seen[f"input/{name}"] for name in ("left", "right")}
    if name == "paired":
        inputs = list(inputs.values())
    value, gradients = gradients_of(net, seen, inputs, training=True)
    assert seen.loss == pytest.approx(float(value), rel=1e-6)
    agreement.assert_gradients(seen, gradients)
    assert [layer.path for layer in seen.layers] == ["joined", "out", "loss"]


RECURRENT = """
import keras

words = keras.Input((6, 4), name="words")
read = keras.layers.Bidirectional(keras.layers.LSTM(3, return_sequences=True), name="read")(words)
attended = keras.layers.MultiHeadAttention(2, 4, name="attended")(read, read)
normed = keras.layers.LayerNormalization(name="normed")(keras.layers.Add(name="added")([read, attended]))
recurrent = keras.Model(words, keras.layers.Dense(3, name="out")(keras.layers.GRU(4, name="last")(normed)))
"""


def test_recurrent_and_attending_layers_are_measured_inside_and_out(folder: Path) -> None:
    seen = agreement.dump(f"{agreement.source(folder, RECURRENT)}:recurrent", loss="cross-entropy", train=False)
    keras.backend.clear_session()
    from net import recurrent

    net, inputs = recurrent, seen["input/inputs"]
    value, gradients = gradients_of(net, seen, inputs, training=False)
    assert seen.loss == pytest.approx(float(value), rel=1e-6)
    agreement.assert_gradients(seen, gradients)
    agreement.assert_layers_hold_parameters(seen)
    expected = layers_of(net, seen, inputs)
    assert expected.keys() == {"read", "attended", "added", "normed", "last", "out"}
    agreement.assert_activations(seen, expected)
    inside = {f"read/{way}_lstm[{iteration}]/lstm_cell" for way in ("forward", "backward") for iteration in range(6)}
    inside |= {f"last[{iteration}]" for iteration in range(6)} | {
        f"attended/{part}" for part in ("query", "key", "value")
    }
    assert inside <= {layer.path for layer in seen.layers}


def test_a_sequential_model_is_described_by_its_input_layer(folder: Path) -> None:
    seen = agreement.dump(f"{agreement.source(folder, NET)}:chain", "float32[5,4]", loss="cross-entropy")
    keras.backend.clear_session()
    from net import chain

    _, gradients = gradients_of(chain, seen, seen["input/inputs"], training=True)
    agreement.assert_gradients(seen, gradients)
    assert {"sequential/a", "sequential/b"} <= {layer.path for layer in seen.layers}


def test_a_subclassed_model_is_built_and_trained_and_its_updates_are_captured(folder: Path) -> None:
    target = f"{agreement.source(folder, NET)}:Net(width=5)"
    seen = agreement.dump(target, "float32[6,4]", "scale=float32[6,1]", loss="cross-entropy")
    from net import Net

    keras.backend.clear_session()
    net = Net(width=5)
    net(seen["input/x"], seen["input/scale"])
    agreement.assert_layers_hold_parameters(seen)
    others = [seen[f"state/non_trainable/{each.path}"] for each in net.non_trainable_variables]
    params = {name: jnp.asarray(each) for name, each in agreement.family(seen, "param").items()}

    def loss(params: Any) -> Any:
        ordered = [params[each.path] for each in net.trainable_variables]
        arguments = (seen["input/x"], seen["input/scale"])
        outputs, updated = net.stateless_call(ordered, others, *arguments, training=True)
        return agreement.cross_entropy(outputs["logits"], seen["input/labels"]), (outputs, updated)

    (value, (outputs, updated)), gradients = jax.value_and_grad(loss, has_aux=True)(params)
    assert seen.loss == pytest.approx(float(value), rel=1e-6)
    agreement.assert_gradients(seen, gradients)
    moved = dict(zip((each.path for each in net.non_trainable_variables), updated, strict=True))
    aux = agreement.family(seen, "aux")
    agreement.assert_same_tensors(aux, {
        **{f"non_trainable/{path}": each for path, each in moved.items()},
        **{f"output/{name}": each for name, each in outputs.items()},
    })  # fmt: skip


def test_a_model_that_build_has_marked_as_built_is_built(folder: Path) -> None:
    marked = "marked = Net()\nmarked.build((None, 4))"
    with pytest.warns(UserWarning, match="unbuilt state"):
        seen = agreement.dump(f"{agreement.source(folder, NET + marked)}:marked", "float32[6,4]", "scale=float32[6,1]")
    assert {"net/first/kernel", "net/last/kernel"} <= agreement.family(seen, "param").keys()


def test_the_seed_makes_the_weights(folder: Path) -> None:
    target = f"{agreement.source(folder, NET)}:chain"
    kernels: list[Any] = []
    for seed in (1, 1, 2):
        keras.backend.clear_session()
        kernels.append(agreement.dump(target, "float32[5,4]", seed=seed)["param/sequential/a/kernel"])
    assert np.array_equal(kernels[0], kernels[1])
    assert not np.array_equal(kernels[0], kernels[2])


def test_keras_on_another_backend_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keras.backend, "backend", lambda: "tensorflow")
    with pytest.raises(UsageError) as refused:
        agreement.dump(f"{agreement.source(folder, NET)}:chain", "float32[5,4]")
    assert (refused.value.message, refused.value.hint) == ("Keras runs on tensorflow here", "set KERAS_BACKEND=jax")


@pytest.mark.parametrize(("name", "layer"), [("MobileNetV2", "block_16_project"), ("ResNet50", "conv5_block3_3_conv")])
def test_models_of_keras_applications(folder: Path, name: str, layer: str) -> None:
    arguments = "weights=None, input_shape=(32, 32, 3), classes=5, classifier_activation=None"
    target = f"keras.applications:{name}({arguments})"
    seen = agreement.dump(target, "float32[2,32,32,3]", loss="cross-entropy", train=False)
    keras.backend.clear_session()
    random.seed(0)
    net = getattr(keras.applications, name)(
        weights=None, input_shape=(32, 32, 3), classes=5, classifier_activation=None
    )
    inputs = seen["input/inputs"]
    value, gradients = gradients_of(net, seen, inputs, training=False)
    assert seen.loss == pytest.approx(float(value), rel=1e-5)
    agreement.assert_gradients(seen, gradients, 1e-4)
    agreement.assert_layers_hold_parameters(seen)
    expected = layers_of(net, seen, inputs)
    assert layer in expected
    agreement.assert_activations(seen, expected, close=1e-4)


OWN_LOSS = """
import keras
from keras import layers as L

def two(loss=None, weights=None, listed=False):
    x = keras.Input((6,), name="x")
    hidden = L.Dense(4, name="hidden", activity_regularizer="l2", kernel_regularizer="l1")(x)
    outputs = [L.Dense(3, name="cls")(hidden), L.Dense(1, name="reg")(hidden)]
    net = keras.Model(x, outputs if listed else {"cls": outputs[0], "reg": outputs[1]}, name="two")
    if loss:
        net.compile(loss=loss, loss_weights=weights)
    return net

logits = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
plain = two()
by_name = two({"cls": logits, "reg": "mse"}, {"cls": 1.0, "reg": 0.5})
listed = two([keras.losses.CategoricalCrossentropy(from_logits=True), "mae"], listed=True)
partly = two({"cls": logits})
inner_input = keras.Input((6,))
inner = keras.Model(inner_input, L.Dense(4, name="first")(inner_input), name="inner")
outer_input = keras.Input((6,))
nested = keras.Model(outer_input, L.Dense(2, name="top")(inner(outer_input)), name="nested")
tail = keras.Sequential([L.Dense(3, name="z")], name="tail")
chained = keras.Sequential([keras.Input((6,)), inner, tail], name="all")
"""


@pytest.mark.parametrize(
    ("name", "counted"),
    [
        ("plain", "mse of cls and reg"),
        ("by_name", "compiled: sparse_categorical_crossentropy of cls and mean_squared_error of reg"),
        ("listed", "compiled: categorical_crossentropy of cls and mean_absolute_error of reg"),
        ("partly", "compiled: sparse_categorical_crossentropy of cls"),
    ],
)
def test_the_loss_is_what_fit_would_minimise(folder: Path, name: str, counted: str) -> None:
    seen = agreement.dump(f"{agreement.source(folder, OWN_LOSS)}:{name}")
    import net as module

    net, x = getattr(module, name), seen["input/inputs"]
    labels = {
        key.removeprefix("labels/"): each for key, each in agreement.family(seen, "input").items() if "labels" in key
    }
    mean = {"cls": lambda z, y: agreement.cross_entropy(z, y if y.ndim == 1 else y.argmax(-1)),
            "reg": lambda z, y: ((z - y) ** 2).mean()}  # fmt: skip
    if name == "plain":
        mean["cls"] = mean["reg"]
    weights = {"cls": 1.0, "reg": {"by_name": 0.5, "partly": 0.0}.get(name, 1.0)}
    if name == "listed":
        mean["reg"] = lambda z, y: jnp.abs(z - y).mean()

    def loss(params: Any) -> Any:
        hidden = x @ params["hidden/kernel"] + params["hidden/bias"]
        outputs = {key: hidden @ params[f"{key}/kernel"] + params[f"{key}/bias"] for key in ("cls", "reg")}
        own = sum(weights[key] * mean[key](outputs[key], labels[key]) for key in labels)
        return own + 0.01 * (hidden**2).sum() / len(x) + 0.01 * jnp.abs(params["hidden/kernel"]).sum()

    params = {key: jnp.asarray(each) for key, each in agreement.family(seen, "param").items()}
    value, gradients = jax.value_and_grad(loss)(params)
    assert net.compiled == (name != "plain")
    assert seen.loss == pytest.approx(float(value), rel=1e-5)
    agreement.assert_gradients(seen, gradients)
    said = f"{counted} and 2 losses that the model adds" + "; not counted: reg" * (name == "partly")
    assert seen.manifest.provenance["counted"] == said


@pytest.mark.parametrize("each", [False, True])
def test_weights_in_the_data_weigh_the_examples_as_in_fit(folder: Path, each: bool) -> None:
    drawn = np.random.default_rng(0)
    one = drawn.uniform(size=5).astype(np.float32)
    weights = {"sample_weight/cls": one, "sample_weight/reg": one[::-1].copy()} if each else {"sample_weight": one}
    labels = {"labels/cls": drawn.integers(0, 3, 5).astype(np.int32), "labels/reg": np.ones((5, 1), np.float32)}
    batch = {"inputs": drawn.normal(size=(5, 6)).astype(np.float32), **labels, **weights}
    data = {name: InputSpec.of(array.dtype.name, array.shape) for name, array in batch.items()}
    model = load_model(f"{agreement.source(folder, OWN_LOSS)}:by_name", Request(data=data))
    variables = model.init(jax.random.key(0))
    value, _ = model.loss(variables, batch)

    by_output = [weights.get(f"sample_weight/{name}", one) for name in ("cls", "reg")]
    params = {name: np.asarray(each) for name, each in variables["params"].items()}
    hidden = batch["inputs"] @ params["hidden/kernel"] + params["hidden/bias"]
    logits, number = (hidden @ params[f"{name}/kernel"] + params[f"{name}/bias"] for name in ("cls", "reg"))
    losses = np.log(np.exp(logits).sum(-1)) - logits[np.arange(5), labels["labels/cls"]], 0.5 * (number[:, 0] - 1) ** 2
    added = 0.01 * np.square(hidden).sum() / 5 + 0.01 * np.abs(params["hidden/kernel"]).sum()
    expected = sum((own * of_each).mean() for own, of_each in zip(losses, by_output, strict=True)) + added
    assert float(value) == pytest.approx(float(expected), rel=1e-5)
    assert model.counted().startswith("compiled, weighted by sample_weight: sparse_categorical")


def test_a_compiled_loss_runs_again_in_one_program(folder: Path) -> None:
    model = with_array_variables(load_model(f"{agreement.source(folder, OWN_LOSS)}:by_name", Request()))
    variables, batch = model_arguments(model, seed=0).make()
    jax.eval_shape(model.loss, variables, batch)
    program = jax.jit(jax.value_and_grad(model.loss, has_aux=True))
    assert len({float(program(variables, batch)[0][0]) for _ in range(2)}) == 1


OWN_METHODS = """
import keras

class Own(keras.Model):
    def __init__(self):
        super().__init__(name="own")
        self.dense = keras.layers.Dense(2, name="dense")
    def call(self, x):
        return self.dense(x)

class OwnLoss(Own):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return 3.0 * keras.ops.mean(keras.ops.abs(y_pred - y))

class OwnStep(Own):
    def train_step(self, *state):
        raise NotImplementedError

class OwnLossOfInputs(Own):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return keras.ops.mean(keras.ops.abs(y_pred - y)) * keras.ops.sum(x)

def compiled(net, loss="mse"):
    net.compile(loss=loss)
    return net

own_loss, own_step = compiled(OwnLoss()), compiled(OwnStep())
no_other_loss, step_alone = compiled(OwnLossOfInputs(), None), compiled(OwnStep(), None)
"""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("own_loss", "compute_loss of OwnLoss"),
        (
            "own_step",
            "compiled: mean_squared_error of value; not run: train_step of OwnStep, which may have another loss",
        ),
        ("no_other_loss", "compute_loss of OwnLossOfInputs"),
        ("step_alone", "mse of value; not run: train_step of OwnStep, which may have another loss"),
    ],
)
def test_methods_of_the_model_are_said_to_be_its_loss(folder: Path, name: str, said: str) -> None:
    seen = agreement.dump(f"{agreement.source(folder, OWN_METHODS)}:{name}", "float32[4,3]")
    error = seen["activation/own/dense"] - seen["input/labels"]
    factors = {"own_loss": 3.0, "no_other_loss": seen["input/x"].sum()}
    expected = factors[name] * np.abs(error).mean() if name in factors else np.square(error).mean()
    assert seen.loss == pytest.approx(float(expected), rel=1e-5)
    assert seen.manifest.provenance["counted"] == said


def test_a_chosen_loss_says_what_it_leaves_out(folder: Path) -> None:
    seen = agreement.dump(f"{agreement.source(folder, OWN_LOSS)}:by_name", loss="mse")
    assert seen.manifest.provenance["counted"] == "mse of cls and reg; not counted: 2 losses that the model adds"
    assert seen["input/labels/cls"].shape == (8, 3)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("nested", {"inner/first", "top"}), ("chained", {"all/inner/first", "all/tail/z"})],
)
def test_layers_and_parameters_of_one_module_have_one_name(folder: Path, name: str, parameters: set[str]) -> None:
    seen = agreement.dump(f"{agreement.source(folder, OWN_LOSS)}:{name}")
    assert {key.rpartition("/")[0] for key in agreement.family(seen, "param")} == parameters
    assert parameters <= {layer.path for layer in seen.layers}
