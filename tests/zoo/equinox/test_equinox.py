"""Equinox modules: named by attribute path where Equinox has class names, the same numbers, state and keys in place."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from gradscope.errors import ModelError, UsageError
from tests.zoo import agreement

pytest.importorskip("equinox", reason="equinox is not installed: pip install 'gradscope-jax[equinox]'")
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

NET = """
import equinox as eqx
import jax
import jax.numpy as jnp

class Block(eqx.Module):
    fc: eqx.nn.Linear
    norm: eqx.nn.BatchNorm
    drop: eqx.nn.Dropout
    def __init__(self, key):
        self.fc = eqx.nn.Linear(4, 4, key=key)
        self.norm = eqx.nn.BatchNorm(4, "examples", mode="batch")
        self.drop = eqx.nn.Dropout(0.5)
    def __call__(self, x, state, key):
        y, state = self.norm(self.fc(x), state)
        return self.drop(jax.nn.relu(y), key=key) + x, state

class Net(eqx.Module):
    blocks: list
    head: eqx.nn.MLP
    table: jax.Array
    fail: bool = eqx.field(static=True)
    def __init__(self, *, fail=False, key):
        first, second, last = jax.random.split(key, 3)
        self.blocks = [Block(first), Block(second)]
        self.head = eqx.nn.MLP(4, 3, 5, 1, key=last)
        self.table = jnp.arange(4)
        self.fail = fail
    def __call__(self, x, state, *, key, scale=1.0):
        for block, each in zip(self.blocks, jax.random.split(key)):
            x, state = block(x, state, each)
        if self.fail:
            raise RuntimeError("asked to")
        return {"logits": self.head(x[self.table] * scale), "features": x}, state

pair = eqx.nn.make_with_state(Net)(key=jax.random.key(7))
alone = pair[0]

class Lifted(eqx.Module):
    layers: eqx.nn.Linear
    cell: eqx.nn.LSTMCell
    heads: eqx.nn.Linear
    def __init__(self, key):
        keys = jax.random.split(key, 7)
        self.layers = eqx.filter_vmap(lambda key: eqx.nn.Linear(4, 4, key=key))(keys[:3])
        self.cell = eqx.nn.LSTMCell(4, 4, key=keys[3])
        self.heads = eqx.filter_vmap(lambda key: eqx.nn.Linear(4, 2, key=key))(keys[4:6])
    def __call__(self, x):
        arrays, rest = eqx.partition(self.layers, eqx.is_array)
        x, _ = jax.lax.scan(lambda x, layer: (jax.nn.gelu(jax.vmap(eqx.combine(layer, rest))(x)), None), x, arrays)
        start = (jnp.zeros(4), jnp.zeros(4))
        (x, _), _ = jax.lax.scan(eqx.filter_checkpoint(lambda carry, each: (self.cell(each, carry), None)), start, x)
        return eqx.filter_vmap(lambda head, x: head(x), in_axes=(eqx.if_array(0), None))(self.heads, x)
"""


def by_path(tree: Any) -> dict[str, Any]:
    return agreement.by_path(eqx.filter(tree, eqx.is_inexact_array))


def test_gradients_activations_and_state_are_equinoxs_own(folder: Path) -> None:
    target = f"{agreement.source(folder, NET)}:Net()"
    seen = agreement.dump(target, "float32[6,4]", "scale=float32[6]", loss="cross-entropy", seed=3)
    from net import Net

    net, state = eqx.nn.make_with_state(Net)(key=jax.random.key(3))
    batch = agreement.family(seen, "input")
    agreement.assert_same_tensors(agreement.family(seen, "param"), by_path(net), 0)
    keys = jax.random.split(jax.random.wrap_key_data(seen["state/rngs/key"]), 6)

    def loss(net: Any) -> Any:
        mapped = jax.vmap(
            lambda x, scale, key: net(x, state, scale=scale, key=key), axis_name="examples", out_axes=(0, None)
        )
        outputs, updated = mapped(batch["x"], batch["scale"], keys)
        return agreement.cross_entropy(outputs["logits"], batch["labels"]), updated

    (value, updated), gradients = eqx.filter_value_and_grad(loss, has_aux=True)(net)
    assert seen.loss == pytest.approx(float(value), rel=1e-6)
    agreement.assert_same_tensors(agreement.family(seen, "param_grad"), by_path(gradients))
    norms = {f"blocks/{n}/norm": block.norm for n, block in enumerate(net.blocks)}
    states = {
        f"state/{path}/batch_state_index/{part}": updated.get(norm.batch_state_index)[part]
        for path, norm in norms.items()
        for part in (0, 1)
    }
    aux = agreement.family(seen, "aux")
    agreement.assert_same_tensors({name: aux[name] for name in states}, states)
    found = agreement.family(seen, "activation")
    _, fresh = eqx.nn.make_with_state(Net)(key=jax.random.key(3))  # a state is used once
    layers = jax.vmap(lambda x, scale, key: layers_of(net, fresh, x, scale, key), axis_name="examples")
    expected = layers(batch["x"], batch["scale"], keys)
    assert len(expected) == 12
    agreement.assert_activations(seen, expected)
    assert not any("eqx" in name for name in found)
    agreement.assert_layers_hold_parameters(seen)
    assert set(agreement.family(seen, "state")) >= {"buffers/table", "rngs/key"}


def layers_of(net: Any, state: Any, x: Any, scale: Any, key: Any) -> dict[str, Any]:
    """What each layer returns for one example, every call written out."""
    seen: dict[str, Any] = {}
    for number, (block, each) in enumerate(zip(net.blocks, jax.random.split(key), strict=True)):
        linear = block.fc(x)
        normed, state = block.norm(linear, state)
        dropped = block.drop(jax.nn.relu(normed), key=each)
        x = dropped + x
        parts = {"/fc": linear, "/norm": normed, "/drop": dropped, "": x}
        seen |= {f"blocks/{number}{part}": value for part, value in parts.items()}
    hidden = net.head.layers[0](x[net.table] * scale)
    logits = net.head.layers[1](jax.nn.relu(hidden))
    return seen | {"head/layers/0": hidden, "head/layers/1": logits, "head": logits, "Net": logits}


def test_names_and_values_survive_scan_vmap_and_checkpoint(folder: Path) -> None:
    seen = agreement.dump(f"{agreement.source(folder, NET)}:Lifted", "float32[2,5,4]", loss="mse")
    from net import Lifted

    net, batch = Lifted(key=jax.random.key(0)), agreement.family(seen, "input")
    gradients = eqx.filter_grad(lambda net: jnp.square(jax.vmap(net)(batch["x"]) - batch["labels"]).mean())(net)
    agreement.assert_same_tensors(agreement.family(seen, "param_grad"), by_path(gradients))
    agreement.assert_activations(seen, jax.vmap(lambda x: lifted_layers_of(net, x))(batch["x"]))
    agreement.assert_layers_hold_parameters(seen)


def lifted_layers_of(net: Any, x: Any) -> dict[str, Any]:
    """What each layer of `Lifted` returns for one example, in every iteration of its loops."""
    seen: dict[str, Any] = {}
    for iteration in range(3):
        layer = jax.tree.map(lambda leaf: leaf[iteration] if eqx.is_array(leaf) else leaf, net.layers)  # noqa: B023 - at once
        seen[f"layers[{iteration}]"] = jax.vmap(layer)(x)
        x = jax.nn.gelu(seen[f"layers[{iteration}]"])
    hidden = (jnp.zeros(4), jnp.zeros(4))
    for iteration, each in enumerate(x):
        hidden = seen[f"cell[{iteration}]"] = net.cell(each, hidden)
    heads = jnp.einsum("hoi,i->ho", net.heads.weight, hidden[0]) + net.heads.bias
    return {**seen, "heads": heads, "Lifted": heads}


def test_naming_changes_no_bit_and_not_the_users_tree(folder: Path) -> None:
    from gradscope.frameworks.equinox.scoped_modules import named_tree

    net = eqx.nn.MLP(4, 3, 5, 2, key=jax.random.key(0))
    before = jax.tree_util.tree_leaves_with_path(net)
    named = named_tree(net)
    assert isinstance(named, eqx.nn.MLP)
    after = jax.tree_util.tree_leaves_with_path(named)
    assert [(path, id(leaf)) for path, leaf in after] == [(path, id(leaf)) for path, leaf in before]
    assert type(net.layers[0]) is eqx.nn.Linear
    x = jnp.arange(4.0)
    with jax.disable_jit():
        value, gradients = eqx.filter_value_and_grad(lambda net: net(x).sum())(named)
        expected_value, expected = eqx.filter_value_and_grad(lambda net: net(x).sum())(net)
    assert value == expected_value
    agreement.assert_same_tensors(by_path(gradients), by_path(expected), 0)


def test_a_pair_of_module_and_state_is_taken_as_it_is(folder: Path) -> None:
    seen = agreement.dump(f"{agreement.source(folder, NET)}:pair", "float32[6,4]", train=False)
    from net import pair

    agreement.assert_same_tensors(agreement.family(seen, "param"), by_path(pair[0]), 0)
    evaluating = eqx.nn.inference_mode(pair[0])
    keys = jax.random.split(jax.random.key(0), 6)
    mapped = jax.vmap(lambda x, key: evaluating(x, pair[1], key=key)[0], axis_name="examples")
    expected = mapped(seen["input/x"], keys)
    found = {name: seen[f"aux/output/{name}"] for name in expected}
    agreement.assert_same_tensors(found, expected)


def test_a_module_without_its_state_is_refused_with_what_to_name(folder: Path) -> None:
    with pytest.raises(UsageError) as refused:
        agreement.dump(f"{agreement.source(folder, NET)}:alone", "float32[6,4]")
    assert refused.value.message == "Net takes a state, and the target names only the module"


def test_a_trace_that_raises_states_the_users_line(folder: Path) -> None:
    with pytest.raises(ModelError, match=r"RuntimeError: asked to") as failed:
        agreement.dump(f"{agreement.source(folder, NET)}:Net(fail=True)", "float32[6,4]")
    assert 'raise RuntimeError("asked to")' in failed.value.user_frames


VIT = {"img_size": 16, "in_channels": 3, "dim": 8, "patch_size": 8, "num_heads": 2, "depths": [1, 1], "num_classes": 5}
FASTER_VIT = {"img_size": 32, "in_channels": 3, "dim": 8, "in_dim": 8, "num_heads": [2, 2], "hat": [False, True]}
FASTER_VIT |= {"depths": [1, 1], "window_size": [4, 4], "ct_size": 1, "num_classes": 5}
MOBILE_NET = {"in_channels": 3, "last_channels": 16, "num_classes": 5}
MOBILE_NET |= {"layers_config": [[8, 8, 3, 1, False, "relu"], [8, 16, 3, 2, True, "hard_swish"]]}


@pytest.mark.parametrize(
    ("name", "arguments", "size"),
    [
        ("vit:VisionTransformer", VIT, 16),
        ("fastervit:FasterViT", FASTER_VIT, 32),
        ("mobilenet:MobileNetv3", MOBILE_NET, 16),
    ],
)
def test_models_of_equimo(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, arguments: dict[str, Any], size: int
) -> None:
    pytest.importorskip("equimo", reason="equimo is not installed: pip install 'gradscope-jax[zoo]'")
    call = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
    seen = agreement.dump(f"equimo.models.{name}({call})", f"float32[2,3,{size},{size}]", loss="cross-entropy")
    module, _, cls = name.partition(":")
    net = getattr(import_module(f"equimo.models.{module}"), cls)(**arguments, key=jax.random.key(0))
    batch = agreement.family(seen, "input")
    assert "state/rngs/key" not in seen  # nothing is dropped by default
    keys = jax.random.split(jax.random.key(0), 2)

    @eqx.filter_jit
    def loss(net: Any) -> Any:
        logits = jax.vmap(lambda x, key: net(x, key=key, inference=False))(batch["x"], keys)
        return agreement.cross_entropy(logits, batch["labels"])

    agreement.assert_same_tensors(agreement.family(seen, "param_grad"), by_path(eqx.filter_grad(loss)(net)))
    agreement.assert_layers_hold_parameters(seen)
    with monkeypatch.context() as patched:
        idle, returned = recording(net, patched)
        with jax.disable_jit():
            for x, key in zip(batch["x"], keys, strict=True):
                net(x, key=key, inference=False)
    found = agreement.family(seen, "activation")
    one_by_one = {name: np.stack(calls) for name, calls in returned.items()}
    expected = {name: calls.reshape(found.get(name, calls).shape) for name, calls in one_by_one.items()}
    assert len(expected.keys() - idle) >= 29
    agreement.assert_activations(seen, expected, idle & expected.keys())


def recording(net: Any, patched: pytest.MonkeyPatch) -> tuple[set[str], dict[str, list[Any]]]:
    """The modules that do nothing here, by name, and from now on what every call of every module returns.

    A `vmap` is a loop as long as this lasts, so that every value is one to keep.
    """
    modules = modules_of(net)
    names = {id(module): name or type(net).__name__ for name, module in modules.items()}
    returned: dict[str, list[Any]] = {}

    def keeping(call: Any) -> Any:
        def called(self: Any, *args: Any, **kwargs: Any) -> Any:
            value = call(self, *args, **kwargs)
            returned.setdefault(names[id(self)], []).append(value)
            return value

        return called

    calls = {cls: cls.__call__ for cls in {type(module) for module in modules.values() if callable(module)}}
    for cls, call in calls.items():  # all looked up before any is replaced: they inherit
        patched.setattr(cls, "__call__", keeping(call))
    for mapping in (jax, "vmap"), (eqx, "filter_vmap"):
        patched.setattr(*mapping, looped)
    return {
        names[id(module)] for module in modules.values() if isinstance(module, eqx.nn.Identity | eqx.nn.Dropout)
    }, returned


def looped(function: Callable[..., Any]) -> Callable[..., Any]:
    """What `jax.vmap` makes of a function, one row after the other."""
    return lambda *rows: jax.tree.map(lambda *each: jnp.stack(each), *map(function, *rows))


def modules_of(value: Any, name: str = "") -> dict[str, Any]:
    """A module and all inside it by name; that of the root is empty."""
    found = {name: value} if isinstance(value, eqx.Module) else {}
    for path, child in jax.tree_util.tree_leaves_with_path(value, is_leaf=lambda child: child is not value):
        if child is not value:
            inside = jax.tree_util.keystr(path, simple=True, separator="/")
            found |= modules_of(child, f"{name}/{inside}" if name else inside)
    return found


SOLVER = """
import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp

class Net(eqx.Module):
    field: eqx.nn.Linear
    head: eqx.nn.Linear
    def __init__(self, *, key):
        self.field, self.head = eqx.nn.Linear(4, 4, key=key), eqx.nn.Linear(4, 2, key=key)
    def __call__(self, y):
        step = lambda carry: (carry[0] + 1, carry[1] + 0.1 * jnp.tanh(self.field(carry[1])))
        loop = jax.named_call(eqxi.while_loop, name="outer-loop")  # as diffrax names it
        return self.head(loop(lambda carry: carry[0] < 3, step, (0, y), max_steps=3, kind="bounded")[1])
"""


def test_a_module_that_a_solver_calls_is_named_by_its_path(folder: Path) -> None:
    seen = agreement.dump(f"{agreement.source(folder, SOLVER)}:Net", "float32[6,4]")
    paths = {layer.path for layer in seen.layers}
    assert not any("loop" in path for path in paths)
    assert {"field[0]", "field[2]", "head"} <= paths

    y = jnp.asarray(seen["input/y"])
    params = {name: jnp.asarray(each) for name, each in agreement.family(seen, "param").items()}
    found = y @ params["field/weight"].T + params["field/bias"]
    np.testing.assert_allclose(seen["activation/field[0]"], found, rtol=1e-5, atol=1e-6)
