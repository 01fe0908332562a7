"""Haiku functions: transformed by the user, by a class of modules, or not yet; the same numbers as Haiku alone."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gradscope.errors import ModelError, UsageError
from tests.zoo import agreement

pytest.importorskip("haiku", reason="dm-haiku is not installed: pip install 'gradscope-jax[haiku]'")
import haiku as hk
import jax
import jax.numpy as jnp

NET = """
import haiku as hk
import jax
import jax.numpy as jnp

class Block(hk.Module):
    def __call__(self, x, is_training):
        x = hk.BatchNorm(True, True, 0.9)(hk.Linear(4, name="fc")(x), is_training)
        return hk.dropout(hk.next_rng_key(), 0.5 if is_training else 0.0, jax.nn.relu(x))

class Net(hk.Module):
    def __init__(self, classes=3, name=None):
        super().__init__(name)
        self.classes = classes
        self.block = Block(name="own")
    def __call__(self, x, is_training, *, scale):
        x = Block(name="first")(x, is_training)
        x = hk.layer_stack(2)(lambda x: jnp.tanh(hk.Linear(4, name="stacked")(x)))(x)
        x = self.block(x, is_training) * scale[:, None]
        return hk.Linear(self.classes, name="head")(x), {"features": x}

def forward(x):
    return hk.nets.MLP([4, 2], name="mlp")(x)

stateless = hk.transform(forward)
stateful = hk.transform_with_state(lambda x, is_training, scale: Net(name="net")(x, is_training, scale=scale))

def recurrent(x):
    core = hk.LSTM(4, name="core")
    outputs, _ = hk.dynamic_unroll(core, x, core.initial_state(x.shape[1]))
    return outputs

def init(key):
    return {}
"""


def intercepted(run: Callable[[], Any], added: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
    """What a function returns, and what each module that it calls returned, by its name.

    Args:
        run: The function.
        added: What to add to it first.
    """
    seen: dict[str, Any] = {}

    def keep(call: Any, args: Any, kwargs: Any, context: Any) -> Any:
        returned, name = call(*args, **kwargs), context.module.module_name.replace("/~/", "/")
        if context.method_name == "__call__" and returned is not None:
            returned = seen[name] = returned + added[name] if added and name in added else returned
        return returned

    with hk.intercept_methods(keep):
        return run(), seen


@pytest.mark.parametrize("name", ["Net(classes=3)", "stateful"])
def test_gradients_activations_and_state_are_haikus_own(folder: Path, name: str) -> None:
    target = f"{agreement.source(folder, NET)}:{name}"
    seen = agreement.dump(target, "float32[6,4]", "scale=float32[6]", loss="cross-entropy")
    from net import Net

    batch = agreement.family(seen, "input")
    own = {} if name.startswith("Net") else {"name": "net"}
    net = hk.transform_with_state(lambda x, is_training, scale: Net(**own)(x, is_training, scale=scale))
    params, state = jax.eval_shape(lambda: net.init(jax.random.key(0), jnp.zeros((6, 4)), True, jnp.zeros(6)))
    params, state = (filled(tree, seen, prefix) for tree, prefix in ((params, "param"), (state, "state/state")))
    key = jax.random.wrap_key_data(seen["state/rngs/key"])
    arguments = (key, batch["x"], True, batch["scale"])

    def loss(params: Any) -> Any:
        (logits, _), updated = net.apply(params, state, *arguments)
        return agreement.cross_entropy(logits, batch["labels"]), updated

    (value, updated), gradients = jax.value_and_grad(loss, has_aux=True)(params)
    assert seen.loss == pytest.approx(float(value), rel=1e-6)
    agreement.assert_gradients(seen, scoped(gradients))
    aux = agreement.family(seen, "aux")
    agreement.assert_same_tensors(
        {name: aux[name] for name in aux if name.startswith("state/")},
        {f"state/{name}": each for name, each in agreement.by_path(scoped(updated)).items()},
    )
    stacked = next(each for name, each in params.items() if name.endswith("stacked"))
    _, expected = intercepted(lambda: net.apply(params, state, *arguments))
    expected = {name: each for name, each in expected.items() if not isinstance(each, jax.core.Tracer)}  # a scan's
    del expected["net/__layer_stack_no_per_layer"]  # for which Haiku opens no scope
    x = expected["net/first"]
    for iteration, kernel in enumerate(stacked["w"]):
        expected[f"net[{iteration}]/stacked"] = x @ kernel + stacked["b"][iteration]
        x = jnp.tanh(expected[f"net[{iteration}]/stacked"])
    expected["net"] = expected["net"][0]  # the other output leaves beside the loss
    agreement.assert_activations(seen, expected)
    assert {"net/first/fc", "net/own", "net/head"} <= expected.keys()
    agreement.assert_layers_hold_parameters(seen)


def scoped(tree: Any) -> Any:
    """Haiku's dictionary by the names under which its layers are called."""
    return {
        re.sub(r"(^|/)(~|__layer_stack_no_per_layer)(?=/)", "", name).strip("/"): each for name, each in tree.items()
    }


def filled(tree: Any, seen: agreement.Dump, prefix: str) -> Any:
    """A tree of Haiku's, filled from a dump."""
    mapped = {name: next(iter(scoped({name: each}))) for name, each in tree.items()}
    return {name: {key: seen[f"{prefix}/{mapped[name]}/{key}"] for key in each} for name, each in tree.items()}


@pytest.mark.parametrize("name", ["forward", "stateless"])
def test_a_function_is_a_target_transformed_or_not(folder: Path, name: str) -> None:
    seen = agreement.dump(f"{agreement.source(folder, NET)}:{name}", "float32[6,4]", loss="sum", train=False)
    from net import stateless

    params = filled(jax.eval_shape(stateless.init, jax.random.key(0), jnp.zeros((6, 4))), seen, "param")
    gradients = jax.grad(lambda params: stateless.apply(params, None, seen["input/x"]).sum())(params)
    agreement.assert_gradients(seen, scoped(gradients))
    assert {"mlp/linear_0", "mlp/linear_1"} <= {layer.path for layer in seen.layers}


SAVED = """
import haiku as hk
import jax
import jax.numpy as jnp

def stacked(x):
    x = hk.experimental.layer_stack(3)(lambda x: jnp.tanh(hk.nets.MLP([4], name="mlp")(x)))(x)
    return hk.Linear(2, name="head")(x)

def normed(x, is_training=True):
    x = hk.BatchNorm(True, True, 0.9, name="norm")(hk.Linear(4, name="fc")(x), is_training)
    return hk.dropout(hk.next_rng_key(), 0.5, x) if is_training else x

keyless = hk.without_apply_rng(hk.transform(stacked))
keyless_with_state = hk.without_apply_rng(hk.transform_with_state(stacked))
normalised = hk.transform_with_state(normed)
"""


@pytest.mark.parametrize("name", ["keyless", "keyless_with_state"])
def test_a_function_without_a_key_runs_as_its_own_init_and_apply_do(folder: Path, name: str) -> None:
    seen = agreement.dump(f"{agreement.source(folder, SAVED)}:{name}", "float32[6,4]", loss="mean")
    from net import keyless

    params = filled(jax.eval_shape(keyless.init, jax.random.key(0), jnp.zeros((6, 4))), seen, "param")
    gradients = jax.grad(lambda params: keyless.apply(params, seen["input/x"]).mean())(params)
    agreement.assert_gradients(seen, scoped(gradients))
    assert not any(key.startswith("state/") for key in seen)


def test_a_module_and_its_parameters_have_one_name(folder: Path) -> None:
    seen = agreement.dump(f"{agreement.source(folder, SAVED)}:keyless", "float32[6,4]", loss="mean")
    owners = {name.rpartition("/")[0] for name in agreement.family(seen, "param")}
    layers = {re.sub(r"\[\d+\]", "", layer.path) for layer in seen.layers}
    assert owners == {"mlp/linear_0", "head"}
    assert owners <= layers


def test_evaluation_runs_what_was_initialised_in_training(folder: Path) -> None:
    target = f"{agreement.source(folder, SAVED)}:normalised"
    seen, trained = (agreement.dump(target, "float32[6,4]", loss="mean", train=train) for train in (False, True))
    assert {name: each.tolist() for name, each in agreement.family(seen, "param").items()} == {
        name: each.tolist() for name, each in agreement.family(trained, "param").items()
    }
    from net import normalised

    shapes = jax.eval_shape(normalised.init, jax.random.key(0), jnp.zeros((6, 4)))
    params, state = (filled(tree, seen, prefix) for tree, prefix in zip(shapes, ("param", "state/state"), strict=True))
    outputs = normalised.apply(params, state, None, seen["input/x"], is_training=False)[0]
    assert seen.loss == pytest.approx(float(outputs.mean()), rel=1e-5)


PAIRS = """
import haiku as hk
import jax
import jax.numpy as jnp

def forward(x):
    return hk.Linear(1, name="head")(hk.BatchNorm(True, True, 0.9, name="norm")(hk.Linear(4, name="fc")(x), True))

net = hk.without_apply_rng(hk.transform_with_state(forward))
other = hk.without_apply_rng(hk.transform(lambda x: hk.Linear(4, name="other")(x)))
batch = lambda key, size: jax.random.normal(key, (size, 4))

class Pair:
    def init(key):
        return jax.jit(net.init)(key, jnp.zeros((2, 4)))
    def loss(variables, x):
        outputs, state = net.apply(*variables, x)
        return (outputs ** 2).mean(), {"new": state, "outputs": outputs}

class Networks:
    def init(key):
        return net.init(key, jnp.zeros((2, 4)))[0], other.init(key, jnp.zeros((2, 4)))
    def loss(variables, x):
        return (net.apply(variables[0], {}, other.apply(variables[1], x))[0] ** 2).mean()

Pair.batch = Networks.batch = batch
"""


def test_a_pair_of_parameters_and_state_is_taken_apart_and_one_of_two_networks_is_not(folder: Path) -> None:
    seen = agreement.dump(f"{agreement.source(folder, PAIRS)}:Pair")
    from net import Pair, net

    shapes = jax.eval_shape(Pair.init, jax.random.key(0))
    params, state = (
        {module: {name: seen[f"{family}/{module}/{name}"] for name in tree} for module, tree in modules.items()}
        for modules, family in zip(shapes, ("param", "state/state"), strict=True)
    )
    updated = net.apply(params, state, seen["input/value"])[1]
    aux = agreement.family(seen, "aux")
    agreement.assert_same_tensors(
        {name: aux[name] for name in aux if name.startswith("state/")},
        {f"state/{name}": each for name, each in agreement.by_path(updated).items()},
    )
    assert {name.partition("/")[0] for name in aux} == {"state", "outputs"}
    agreement.assert_gradients(
        seen, jax.grad(lambda params: Pair.loss((params, state), seen["input/value"])[0])(params)
    )
    assert not seen.findings()
    names = {name.rpartition("/")[0] for name in agreement.family(agreement.dump("net.py:Networks"), "param")}
    assert names == {"0/fc", "0/norm", "0/head", "1/other"}


def test_arguments_that_a_class_does_not_take_are_refused_before_it_is_made(folder: Path) -> None:
    target = agreement.source(folder, NET)
    with pytest.raises(UsageError, match=r"Net\(width=3\) does not fit its signature \(classes=3, name=None\)"):
        agreement.dump(f"{target}:Net(width=3)", "float32[6,4]")
    with pytest.raises(UsageError, match=r"^Net takes \(x, is_training, \*, scale\), and received float32\[6,4\]"):
        agreement.dump(f"{target}:Net", "float32[6,4]")


def test_a_module_that_fails_states_the_users_line(folder: Path) -> None:
    with pytest.raises(ModelError, match=r"^init of net.Net\(classes='three'\): ") as failed:
        agreement.dump(f"{agreement.source(folder, NET)}:Net(classes='three')", "float32[6,4]", "scale=float32[6]")
    assert 'name="head"' in failed.value.user_frames


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("name", "arguments", "layers"),
    [
        # Its logits begin as zeros, and with them all gradients, unless it is told otherwise.
        ("ResNet50", {"num_classes": 5, "logits_config": {"w_init": None}}, 234),
        ("MobileNetV1", {"num_classes": 5}, 124),
    ],
)
def test_models_of_haiku(folder: Path, name: str, arguments: dict[str, Any], layers: int) -> None:
    call = ", ".join(f"{name}={value}" for name, value in arguments.items())
    seen = agreement.dump(f"haiku.nets:{name}({call})", "float64[2,32,32,3]", loss="cross-entropy")
    net = hk.transform_with_state(lambda x: getattr(hk.nets, name)(**arguments)(x, is_training=True))
    batch = agreement.family(seen, "input")
    shapes = jax.eval_shape(net.init, jax.random.key(0), batch["inputs"])
    params, state = (filled(tree, seen, prefix) for tree, prefix in zip(shapes, ("param", "state/state"), strict=True))

    def run(params: Any, added: Any) -> Any:
        return intercepted(lambda: net.apply(params, state, None, batch["inputs"]), added)

    def loss(params: Any, added: Any) -> Any:
        (logits, _), captured = run(params, added)
        return agreement.cross_entropy(logits, batch["labels"]), captured

    added = agreement.zeros_like_arrays(lambda: run(params, None)[1])
    stepped = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))(params, added)
    (value, captured), (gradients, of_layers) = stepped
    assert seen.loss == pytest.approx(float(value), rel=1e-9)
    agreement.assert_gradients(seen, scoped(gradients))
    agreement.assert_layers_hold_parameters(seen)
    assert len(captured) == layers
    idle = {each for each in captured if each.endswith("flatten")}  # it is flat already
    agreement.assert_activations(seen, captured, idle)
    agreement.assert_activation_gradients(seen, {each: of_layers[each] for each in of_layers.keys() - idle})


def test_a_core_unrolled_by_a_scan_is_measured_in_every_iteration(folder: Path) -> None:
    seen = agreement.dump(f"{agreement.source(folder, NET)}:recurrent", "float32[3,2,4]", loss="mse")
    from net import recurrent

    net, batch = hk.transform(recurrent), agreement.family(seen, "input")
    params = filled(jax.eval_shape(net.init, jax.random.key(0), batch["x"]), seen, "param")
    gradients = jax.grad(lambda params: jnp.square(net.apply(params, None, batch["x"]) - batch["labels"]).mean())(
        params
    )
    agreement.assert_gradients(seen, scoped(gradients))
    agreement.assert_layers_hold_parameters(seen)

    def step(x: Any, state: Any) -> Any:
        core = hk.LSTM(4, name="core")
        return core(x, state)

    state = hk.LSTMState(hidden=jnp.zeros((2, 4)), cell=jnp.zeros((2, 4)))
    expected = {}
    for iteration, x in enumerate(batch["x"]):
        _, state = hk.transform(step).apply(params, None, x, state)
        expected[f"core[{iteration}]"] = state
    agreement.assert_activations(seen, expected)


def test_a_haiku_that_cannot_be_watched_leaves_a_pair_as_it_is(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = agreement.source(folder, PAIRS)
    monkeypatch.setitem(sys.modules, "haiku._src.base", ModuleType("base"))
    assert {name.partition("/")[0] for name in agreement.family(agreement.dump(f"{source}:Pair"), "param")} == {
        "0",
        "1",
    }
