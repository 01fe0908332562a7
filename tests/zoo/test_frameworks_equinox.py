"""Equinox modules: named by attribute path where Equinox has class names, the same numbers, state and keys in place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gradscope.errors import ModelError, UsageError
from tests.zoo import held

pytest.importorskip("equinox", reason="equinox is not installed: pip install 'gradscope-jax[equinox]'")
import equinox as eqx
import jax
import jax.numpy as jnp

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
    return held.by_path(eqx.filter(tree, eqx.is_inexact_array))


def test_gradients_activations_and_state_are_equinoxs_own(folder: Path) -> None:
    target = f"{held.source(folder, NET)}:Net()"
    seen = held.dump(target, "float32[6,4]", "scale=float32[6]", loss="cross-entropy", seed=3)
    from net import Net

    net, state = eqx.nn.make_with_state(Net)(key=jax.random.key(3))
    batch = held.family(seen, "input")
    held.assert_same_tensors(held.family(seen, "param"), by_path(net), 0)
    keys = jax.random.split(jax.random.wrap_key_data(seen["state/rngs/key"]), 6)

    def loss(net: Any) -> Any:
        mapped = jax.vmap(
            lambda x, scale, key: net(x, state, scale=scale, key=key), axis_name="examples", out_axes=(0, None)
        )
        outputs, updated = mapped(batch["x"], batch["scale"], keys)
        return held.cross_entropy(outputs["logits"], batch["labels"]), (outputs, updated)

    (value, (outputs, updated)), gradients = eqx.filter_value_and_grad(loss, has_aux=True)(net)
    assert seen.loss == pytest.approx(float(value), rel=1e-6)
    held.assert_same_tensors(held.family(seen, "param_grad"), by_path(gradients))
    norms = {f"blocks/{n}/norm": block.norm for n, block in enumerate(net.blocks)}
    states = {
        f"state/{path}/batch_state_index/{part}": updated.get(norm.batch_state_index)[part]
        for path, norm in norms.items()
        for part in (0, 1)
    }
    aux = held.family(seen, "aux")
    held.assert_same_tensors({name: aux[name] for name in states}, states)
    found = held.family(seen, "activation")
    whole = {"Net/blocks/1": outputs["features"], "Net/head": outputs["logits"]}
    held.assert_same_tensors({name: found[name] for name in whole}, whole)
    assert {f"Net/blocks/{n}{part}" for n in (0, 1) for part in ("", "/fc", "/norm", "/drop")} <= found.keys()
    assert {"Net/head/layers/0", "Net/head/layers/1"} <= found.keys()
    assert not any("eqx" in name for name in found)
    held.assert_layers_hold_parameters(seen)
    assert set(held.family(seen, "state")) >= {"buffers/table", "rngs/key"}


def test_names_survive_scan_vmap_and_checkpoint(folder: Path) -> None:
    seen = held.dump(f"{held.source(folder, NET)}:Lifted", "float32[2,5,4]", loss="mse")
    from net import Lifted

    net, batch = Lifted(key=jax.random.key(0)), held.family(seen, "input")
    gradients = eqx.filter_grad(lambda net: jnp.square(jax.vmap(net)(batch["x"]) - batch["labels"]).mean())(net)
    held.assert_same_tensors(held.family(seen, "param_grad"), by_path(gradients))
    paths = {layer.path for layer in seen.layers}
    assert {f"Lifted[{turn}]/layers" for turn in range(3)} <= paths
    assert {f"Lifted[{turn}]/cell" for turn in range(5)} <= paths
    assert "Lifted/heads" in paths
    held.assert_layers_hold_parameters(seen)


def test_naming_changes_no_bit_and_leaves_the_users_tree_alone(folder: Path) -> None:
    from gradscope.frameworks.equinoxnames import named_tree

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
    held.assert_same_tensors(by_path(gradients), by_path(expected), 0)


def test_a_pair_of_module_and_state_is_taken_as_it_is(folder: Path) -> None:
    seen = held.dump(f"{held.source(folder, NET)}:pair", "float32[6,4]", train=False)
    from net import pair

    held.assert_same_tensors(held.family(seen, "param"), by_path(pair[0]), 0)
    evaluating = eqx.nn.inference_mode(pair[0])
    keys = jax.random.split(jax.random.key(0), 6)
    mapped = jax.vmap(lambda x, key: evaluating(x, pair[1], key=key)[0], axis_name="examples")
    expected = mapped(seen["input/x"], keys)
    found = {name: seen[f"aux/output/{name}"] for name in expected}
    held.assert_same_tensors(found, expected)


def test_a_module_without_its_state_says_what_to_name(folder: Path) -> None:
    with pytest.raises(UsageError) as refused:
        held.dump(f"{held.source(folder, NET)}:alone", "float32[6,4]")
    assert refused.value.message == "Net takes a state, and the target names the module alone"


def test_a_trace_that_raises_tells_the_users_line(folder: Path) -> None:
    with pytest.raises(ModelError, match=r"RuntimeError: asked to") as failed:
        held.dump(f"{held.source(folder, NET)}:Net(fail=True)", "float32[6,4]")
    assert 'raise RuntimeError("asked to")' in failed.value.user_frames


def test_vit_of_equimo(folder: Path) -> None:
    pytest.importorskip("equimo", reason="equimo is not installed: pip install 'gradscope-jax[zoo]'")
    arguments: dict[str, Any] = {"img_size": 16, "in_channels": 3, "dim": 8, "patch_size": 8, "num_heads": 2}
    arguments |= {"depths": [1, 1], "num_classes": 5}
    call = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
    seen = held.dump(f"equimo.models.vit:VisionTransformer({call})", "float32[2,3,16,16]", loss="cross-entropy")
    from equimo.models.vit import VisionTransformer

    net, batch = VisionTransformer(**arguments, key=jax.random.key(0)), held.family(seen, "input")
    assert "state/rngs/key" not in seen  # nothing is dropped by default
    keys = jax.random.split(jax.random.key(0), 2)

    def loss(net: Any) -> Any:
        logits = jax.vmap(lambda x, key: net(x, key=key, inference=False))(batch["x"], keys)
        return held.cross_entropy(logits, batch["labels"])

    held.assert_same_tensors(held.family(seen, "param_grad"), by_path(eqx.filter_grad(loss)(net)))
    held.assert_layers_hold_parameters(seen)
    assert "VisionTransformer/blocks/1/blocks/0/attn/qkv" in {layer.path for layer in seen.layers}
