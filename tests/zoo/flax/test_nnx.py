"""Flax NNX modules: named by attribute path through every lift, and the same numbers as without names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gradscope.errors import ModelError
from tests.zoo import agreement

pytest.importorskip("flax", reason="flax is not installed: pip install 'gradscope-jax[flax]'")
import jax
import jax.numpy as jnp
from flax import nnx

NET = """
import jax
import jax.numpy as jnp
from flax import linen, nnx

class Block(nnx.Module):
    def __init__(self, width, *, rngs):
        self.fc = nnx.Linear(width, width, rngs=rngs)
        self.norm = nnx.BatchNorm(width, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)
    def __call__(self, x):
        return self.drop(nnx.relu(self.norm(self.fc(x)))) + x

class Wide(Block):
    def __call__(self, x):
        return super().__call__(x) * 2

class Net(nnx.Module):
    def __init__(self, width=4, *, rngs):
        self.blocks = nnx.List([Block(width, rngs=rngs), Wide(width, rngs=rngs)])
        self.head = nnx.Linear(width, 3, rngs=rngs)
        self.calls = nnx.Variable(jnp.zeros((), jnp.int32))
        self.fail = False
    def __call__(self, x, *, scale=None):
        self.calls[...] += 1
        for block in self.blocks:
            x = block(x)
        if self.fail:
            raise RuntimeError("asked to")
        return {"logits": self.head(x if scale is None else x * scale[:, None]), "features": x}

class Lifted(nnx.Module):
    def __init__(self, *, rngs):
        @nnx.split_rngs(splits=3)
        @nnx.vmap(in_axes=(0,), out_axes=0)
        def stacked(rngs):
            return nnx.Linear(4, 4, rngs=rngs)
        self.layers = stacked(rngs)
        self.again = nnx.Linear(4, 4, rngs=rngs)
        self.inner = Owner(rngs)
    def __call__(self, x):
        @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        def iteration(x, layer):
            return nnx.gelu(layer(x)) + x
        x = iteration(x, self.layers)
        x = nnx.remat(lambda module, x: module(x))(self.again, x)
        x = nnx.jit(lambda module, x: module(x))(self.inner, x)
        return x + self.inner.table(jnp.argmax(x, -1))

class Owner(nnx.Module):
    def __init__(self, rngs):
        self.table = nnx.Embed(4, 4, rngs=rngs)
    def __call__(self, x):
        return self.table.attend(x) + self.table(jnp.argmax(x, -1))

class Layer(nnx.Module):
    def __init__(self, rngs):
        self.fc = nnx.Linear(4, 4, rngs=rngs)
        self.norm = nnx.BatchNorm(4, rngs=rngs)
    def __call__(self, x):
        return nnx.relu(self.norm(self.fc(x)))

class Scanned(nnx.Module):
    def __init__(self, *, rngs):
        split = nnx.split_rngs(splits=3)
        self.layers = split(nnx.vmap(lambda rngs: Layer(rngs), in_axes=(0,), out_axes=0))(rngs)
        self.rnn = nnx.RNN(nnx.LSTMCell(4, 4, rngs=rngs), rngs=rngs)
        bridge = nnx.bridge.ToNNX(linen.Dense(3), rngs=rngs)
        self.bridge = nnx.bridge.lazy_init(bridge, jnp.ones((2, 4)))
    def __call__(self, x):
        scan = nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        x = scan(lambda x, layer: layer(x))(x, self.layers)
        x = scan(nnx.remat(lambda x, layer: layer(x)))(x, self.layers)
        return self.bridge(self.rnn(x))

class Slashed(nnx.Module):
    def __init__(self, *, rngs):
        first, second = nnx.Param(jnp.linspace(1.0, 2.0, 4)), nnx.Param(jnp.linspace(-1.0, 1.0, 4))
        self.kernels = nnx.Dict({"a/b": first, "a": nnx.Dict({"b": second})})
    def __call__(self, x):
        return jnp.sin(x @ self.kernels["a/b"][...]) + x @ self.kernels["a"]["b"][...] ** 2

net = Net(rngs=nnx.Rngs(7))
broken = Net(rngs=nnx.Rngs(7))
broken.fail = True
"""


def loss_of(net: Any, batch: Any) -> Any:
    outputs = net(batch["x"])
    return agreement.cross_entropy(outputs["logits"], batch["labels"])


def params_of(tree: Any) -> dict[str, Any]:
    return {"/".join(map(str, path)): each.get_value() for path, each in nnx.to_flat_state(tree)}


def captured(net: Any, x: Any) -> dict[str, Any]:
    """What every call of every module returned, by the name that it has in a dump."""
    _, state = nnx.capture(net, nnx.Intermediate, method_outputs=nnx.Intermediate)(x)
    return {
        "/".join(map(str, path[:-1] or (type(net).__name__,))) + (f"#{call}" if call > 1 else ""): value
        for path, calls in nnx.to_flat_state(state)
        for call, value in enumerate(calls.get_value(), 1)
        if path[-1] == "__call__"
    }


def test_variables_that_a_slash_would_make_one_are_both_there(folder: Path) -> None:
    seen = agreement.dump(f"{agreement.source(folder, NET)}:Slashed", "float32[6,4]", loss="sum")
    from net import Slashed

    net, x = Slashed(rngs=nnx.Rngs(0)), agreement.family(seen, "input")["x"]
    gradients = nnx.grad(lambda net: net(x).sum())(net)["kernels"]
    expected = {"kernels/a%2Fb": gradients["a/b"][...], "kernels/a/b": gradients["a"]["b"][...]}
    agreement.assert_same_tensors(agreement.family(seen, "param_grad"), expected)


def test_gradients_activations_and_collections_are_nnxs_own(folder: Path) -> None:
    seen = agreement.dump(f"{agreement.source(folder, NET)}:Net", "float32[6,4]", loss="cross-entropy", seed=3)
    from net import Net

    net, batch = Net(rngs=nnx.Rngs(3)), agreement.family(seen, "input")
    agreement.assert_same_tensors(agreement.family(seen, "param"), params_of(nnx.state(net, nnx.Param)), 0)
    outputs = captured(nnx.clone(net), batch["x"])
    value, gradients = nnx.value_and_grad(loss_of)(net, batch)
    assert seen.loss == pytest.approx(float(value), rel=1e-6)
    found, expected = agreement.family(seen, "param_grad"), params_of(gradients)
    agreement.assert_same_tensors(found, {name: expected[name] for name in found})
    updated = {f"batch_stats/{name}": each for name, each in params_of(nnx.state(net, nnx.BatchStat)).items()}
    aux = agreement.family(seen, "aux")
    agreement.assert_same_tensors({name: aux[name] for name in updated}, updated)
    assert int(aux["variable/calls"]) == 1
    outputs["blocks/1"] = outputs.pop("blocks/1#2")  # the first is what its base class returned
    assert outputs.keys() == {"Net", "head"} | {
        f"blocks/{n}{part}" for n in (0, 1) for part in ("", "/fc", "/norm", "/drop")
    }
    del outputs["Net"]["features"]  # it leaves beside the loss: an auxiliary output
    agreement.assert_activations(seen, outputs)
    agreement.assert_layers_hold_parameters(seen)


def test_names_survive_scan_remat_and_jit(folder: Path) -> None:
    seen = agreement.dump(f"{agreement.source(folder, NET)}:Lifted()", "float32[2,4]", loss="mse")
    from net import Lifted

    net, batch = Lifted(rngs=nnx.Rngs(0)), agreement.family(seen, "input")
    gradients = nnx.grad(lambda net: jnp.square(net(batch["x"]) - batch["labels"]).mean())(net)
    agreement.assert_same_tensors(agreement.family(seen, "param_grad"), params_of(gradients))
    paths = {layer.path for layer in seen.layers}
    assert {f"layers[{iteration}]" for iteration in range(3)} <= paths
    assert {"again", "inner/table", "inner/table#2"} <= paths
    agreement.assert_layers_hold_parameters(seen)


def test_iterations_of_a_scanned_module_are_the_modules_and_have_its_values(folder: Path) -> None:
    seen = agreement.dump(f"{agreement.source(folder, NET)}:Scanned", "float32[2,3,4]", loss="mse")
    from net import Scanned

    net, batch = Scanned(rngs=nnx.Rngs(0)), agreement.family(seen, "input")
    gradients = nnx.grad(lambda net: jnp.square(net(batch["x"]) - batch["labels"]).mean())(net)
    agreement.assert_same_tensors(agreement.family(seen, "param_grad"), params_of(gradients))
    agreement.assert_layers_hold_parameters(seen)
    net, expected, x = Scanned(rngs=nnx.Rngs(0)), {}, batch["x"]
    for occurrence in ("", "#2"):
        for iteration in range(3):
            layer = jax.tree.map(lambda leaf: leaf[iteration], net.layers)  # noqa: B023 - mapped at once
            linear = layer.fc(x)
            x = nnx.relu(layer.norm(linear))
            parts = {"": x, "/fc": linear}
            expected |= {f"layers[{iteration}]{part}{occurrence}": value for part, value in parts.items()}
    hidden = net.rnn.cell.initialize_carry((2, 4), nnx.Rngs(0))
    outputs = []
    for iteration in range(3):
        hidden, output = net.rnn.cell(hidden, x[:, iteration])
        outputs.append(output)
        expected[f"rnn/cell[{iteration}]"] = hidden
    expected["rnn"] = jnp.stack(outputs, axis=1)
    expected["bridge"] = expected["Scanned"] = net.bridge(expected["rnn"])
    agreement.assert_activations(seen, expected)
    assert {"rnn/cell[2]/hf", "layers[1]/norm#2", "bridge/Dense"} <= set(agreement.family(seen, "activation"))


def test_naming_changes_no_bit(folder: Path) -> None:
    from gradscope.frameworks.modules.input_spec import parse_input
    from gradscope.frameworks.modules.request import Request
    from gradscope.tracing.loading.loader import load_model

    request = Request(inputs=(parse_input("float32[6,4]"),), loss="cross-entropy")
    model = load_model(f"{agreement.source(folder, NET)}:net", request)
    variables, batch = model.init(jax.random.key(0)), model.batch(jax.random.key(1), 6)
    from net import net

    def plain(variables: Any) -> Any:
        copy = nnx.clone(net)
        own = nnx.to_flat_state(nnx.state(copy, nnx.Param))
        replaced = [(path, each.replace(variables["params"]["/".join(map(str, path))])) for path, each in own]
        nnx.update(copy, nnx.from_flat_state(replaced))
        logits = copy(batch["x"])["logits"]
        likelihoods = jnp.take_along_axis(jax.nn.log_softmax(logits), batch["labels"][..., None], axis=-1)
        return -likelihoods.mean()

    with jax.disable_jit():
        value, gradients = jax.value_and_grad(lambda v: model.loss(v, batch)[0], allow_int=True)(variables)
        expected_value, expected = jax.value_and_grad(plain, allow_int=True)(variables)
    assert value == expected_value
    agreement.assert_same_tensors(gradients["params"], expected["params"], 0)


@pytest.mark.parametrize("name", ["net", "broken"])
def test_the_users_module_and_classes_are_untouched_even_when_the_trace_raises(folder: Path, name: str) -> None:
    target = agreement.source(folder, NET)
    agreement.dump(f"{target}:Net", "float32[6,4]")
    import net as module

    def state() -> Any:
        own = getattr(module, name)
        calls = [vars(cls).get("__call__") for cls in (module.Net, module.Block, nnx.Linear, nnx.BatchNorm)]
        return calls, vars(own).keys(), jax.tree_util.tree_map(id, nnx.state(own))

    before = state()
    if name == "broken":
        with pytest.raises(ModelError, match=r"asked to") as failed:
            agreement.dump(f"net:{name}", "float32[6,4]")
        assert 'raise RuntimeError("asked to")' in failed.value.user_frames
    else:
        agreement.dump(f"net:{name}", "float32[6,4]")
    assert state() == before


def test_evaluation_uses_running_averages_and_drops_nothing(folder: Path) -> None:
    seen = agreement.dump(
        f"{agreement.source(folder, NET)}:net", "float32[6,4]", "scale=float32[6]", train=False, loss="sum"
    )
    from net import net

    batch = agreement.family(seen, "input")
    copy = nnx.clone(net)
    copy.eval()
    outputs = copy(batch["x"], scale=batch["scale"])
    agreement.assert_same_tensors(agreement.family(seen, "aux"), {
        **{f"output/{name}": each for name, each in outputs.items()}, "variable/calls": jnp.ones((), jnp.int32)
    })  # fmt: skip


def test_vit_of_vitax(folder: Path) -> None:
    pytest.importorskip("vitax", reason="vitax is not installed: pip install 'gradscope-jax[zoo]'")
    arguments = {"num_classes": 5, "img_size": 16, "patch_size": 8, "num_layers": 2, "num_heads": 2, "mlp_dim": 16}
    arguments |= {"hidden_size": 8, "fsdp": False}
    call = ", ".join(f"{name}={value}" for name, value in arguments.items())
    target = f"vitax.models.vit:VisionTransformer({call})"
    seen = agreement.dump(target, "float32[2,16,16,3]", loss="cross-entropy")
    from vitax.models.vit import VisionTransformer

    net, batch = VisionTransformer(**arguments, rngs=nnx.Rngs(0)), agreement.family(seen, "input")
    gradients = nnx.grad(lambda net: agreement.cross_entropy(net(batch["x"]), batch["labels"]))(net)
    agreement.assert_same_tensors(agreement.family(seen, "param_grad"), params_of(gradients))
    agreement.assert_layers_hold_parameters(seen)
    fresh = VisionTransformer(**arguments, rngs=nnx.Rngs(0))  # whose dropout has drawn nothing yet
    expected = captured(fresh, batch["x"])
    assert len(expected) == 32
    agreement.assert_activations(seen, expected)
