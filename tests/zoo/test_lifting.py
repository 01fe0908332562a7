"""Files of functions whose `init` returns a module, and the messages where a framework is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import gradscope as gs
from tests.integration.command import gradscope
from tests.zoo import agreement

NNX = """
import jax, jax.numpy as jnp
from flax import nnx

class Net(nnx.Module):
    def __init__(self, rngs):
        self.layers = nnx.List([nnx.Linear(4, 4, rngs=rngs), nnx.BatchNorm(4, rngs=rngs)])
    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

def init(key):
    return Net(nnx.Rngs(key))

def batch(key, size=6):
    return jax.random.normal(key, (size, 4))

def loss(net, batch):
    return jnp.square(net(batch) - batch).mean(), {"biggest": jnp.abs(batch).max()}
"""

EQUINOX = """
import equinox as eqx, jax, jax.numpy as jnp

def init(key):
    return eqx.nn.MLP(4, 2, 5, 1, key=key)

def batch(key, size=6):
    return jax.random.normal(key, (size, 4))

def loss(net, batch):
    return jnp.square(jax.vmap(net)(batch) - 1).mean()
"""

STATEFUL = """
import equinox as eqx, jax, jax.numpy as jnp

def init(key):
    return eqx.nn.make_with_state(eqx.nn.BatchNorm)(4, "rows", mode="batch")

def batch(key, size=6):
    return jax.random.normal(key, (size, 4))

def loss(pair, batch):
    net, state = pair
    out, state = jax.vmap(net, axis_name="rows", in_axes=(0, None), out_axes=(0, None))(batch, state)
    return jnp.square(out - 1).mean(), {"state": state}
"""


def test_an_nnx_module_passes_between_the_users_functions(folder: Path) -> None:
    nnx = pytest.importorskip("flax.nnx", reason="flax is not installed: pip install 'gradscope-jax[flax]'")
    seen = agreement.dump(agreement.source(folder, NNX))
    import net as module

    net = module.Net(nnx.Rngs(0))
    params = {"/".join(map(str, path)): each for path, each in nnx.to_flat_state(nnx.state(net, nnx.Param))}
    for name, param in params.items():
        param.set_value(seen[f"param/{name}"])
    gradients = nnx.grad(module.loss, has_aux=True)(net, seen["input/value"])[0]
    expected = {"/".join(map(str, path)): each.get_value() for path, each in nnx.to_flat_state(gradients)}
    agreement.assert_same_tensors(agreement.family(seen, "param_grad"), expected)
    assert {"Net", "layers/0", "layers/1"} == {layer.path for layer in seen.layers}
    assert set(agreement.family(seen, "aux")) == {"batch_stats/layers/1/mean", "batch_stats/layers/1/var", "biggest"}


def test_an_equinox_module_passes_between_the_users_functions(folder: Path) -> None:
    eqx = pytest.importorskip("equinox", reason="equinox is not installed: pip install 'gradscope-jax[equinox]'")
    seen = agreement.dump(agreement.source(folder, EQUINOX))
    import jax
    import net as module

    def filled(path: Any, leaf: Any) -> Any:
        return seen[f"param/{jax.tree_util.keystr(path, simple=True, separator='/')}"] if eqx.is_array(leaf) else leaf

    net = jax.tree_util.tree_map_with_path(filled, module.init(jax.random.key(0)))
    gradients = eqx.filter_grad(module.loss)(net, seen["input/value"])
    agreement.assert_same_tensors(agreement.family(seen, "param_grad"), agreement.by_path(gradients))
    assert {"MLP", "layers/0", "layers/1"} <= {layer.path for layer in seen.layers}


def test_capture_takes_a_module_as_well(folder: Path) -> None:
    pytest.importorskip("equinox", reason="equinox is not installed: pip install 'gradscope-jax[equinox]'")
    agreement.source(folder, EQUINOX)
    sys.path.insert(0, str(folder))
    import jax
    import net as module

    net, batch = module.init(jax.random.key(0)), module.batch(jax.random.key(1))
    seen = gs.capture(module.loss, net, batch)
    assert seen.loss == pytest.approx(float(module.loss(net, batch)), rel=1e-6)
    assert {"param_grad/layers/0/weight", "activation/layers/1"} <= set(seen)


def test_an_equinox_module_with_its_state_does_too(folder: Path) -> None:
    pytest.importorskip("equinox", reason="equinox is not installed: pip install 'gradscope-jax[equinox]'")
    seen = agreement.dump(agreement.source(folder, STATEFUL))
    assert set(agreement.family(seen, "param_grad")) == {"weight", "bias"}
    assert set(agreement.family(seen, "state")) == {
        "state/batch_counter", "state/batch_state_index/0", "state/batch_state_index/1"
    }  # fmt: skip
    assert {layer.path for layer in seen.layers} == {"BatchNorm"}


@pytest.mark.parametrize(
    ("library", "extra"), [("flax", "flax"), ("equinox", "equinox"), ("haiku", "haiku"), ("keras", "keras")]
)
def test_a_framework_that_is_missing_is_answered_with_its_extra(
    folder: Path, library: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [library, *(each for each in sys.modules if each.startswith(f"{library}."))]:
        monkeypatch.setitem(sys.modules, name, None)
    (folder / "net.py").write_text(f"import {library}\n")
    hint = f"hint: install it: pip install 'gradscope-jax[{extra}]'"
    for target, status in (("net.py", 4), (f"{library}.nets:Net()", 2)):
        done = gradscope("dump", target, folder=folder)
        assert (done.status, done.lines[1]) == (status, hint), done.errors


def test_a_model_of_plain_functions_imports_no_framework() -> None:
    program = (
        "import sys; from gradscope.tracing.loading.loader import load_model; load_model('mlp');"
        "print(sorted({'flax', 'equinox', 'haiku', 'keras', 'transformers'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
