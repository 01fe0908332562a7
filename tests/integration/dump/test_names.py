"""Which values a dump has and which it accounts for, and what a question about a name means."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from tests.integration.command import gradscope
from tests.support.sampled import sampled

TWINS = """
import jax, jax.numpy as jnp

def init(key):
    return {"a/b": jnp.linspace(1.0, 2.0, 4), "a": {"b": jnp.linspace(-1.0, 1.0, 4)}}

def batch(key, size):
    return {"x": jnp.linspace(0.0, 1.0, 4 * size).reshape(size, 4)}

def loss(v, b):
    return jnp.sin(b["x"] @ v["a/b"]).sum() + (b["x"] @ v["a"]["b"] ** 2).sum()
"""

LIKE_ITS_PARAMETER = """
import jax, jax.numpy as jnp

def init(key):
    return {"w": jnp.linspace(0.5, 1.5, 9).reshape(3, 3)}

def batch(key, size):
    return jnp.ones((3, 3))

def loss(v, b):
    return jnp.sin(b @ v["w"]).sum()
"""

LOOP = """
import jax, jax.numpy as jnp

def init(key):
    return {"a": {"w": jnp.eye(3)}, "b": {"w": jnp.linspace(0.0, 1.0, 9).reshape(3, 3)}}

def batch(key, size):
    return {"x": jnp.linspace(0.0, 1.0, 3 * size).reshape(size, 3)}

def cell(v, h):
    with jax.named_scope("cell"):
        return jnp.tanh(h @ v["a"]["w"])

def scan(v, x):
    return jax.lax.scan(lambda h, _: (cell(v, h), None), x, None, length=3)[0]

def nested(v, x):
    return jax.lax.scan(lambda h, _: (scan(v, h), None), x, None, length=2)[0]

def fori(v, x):
    return jax.lax.fori_loop(0, 3, lambda i, h: cell(v, h), x)

def mapped(v, x):
    return jax.lax.map(lambda h: cell(v, h), x)

def unending(v, x):
    return jax.lax.stop_gradient(jax.lax.while_loop(lambda c: c[1] < 3, lambda c: (cell(v, c[0]), c[1] + 1), (x, 0))[0])

def loss(v, b):
    with jax.named_scope("loop"):
        h = KIND(v, b["x"])
    with jax.named_scope("mid"):
        m = jnp.sin(h)
    with jax.named_scope("head"):
        return (m @ v["b"]["w"]).sum()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "twins.py").write_text(TWINS)
    (tmp_path / "like.py").write_text(LIKE_ITS_PARAMETER)
    np.save(tmp_path / "fed.npy", np.full((3, 3), 0.5, np.float32))
    return tmp_path


def shown(folder: Path, *arguments: str) -> dict[str, Any]:
    done = gradscope("dump", *arguments, "--json", "-q", "--force", folder=folder)
    assert done.status == 0, done.errors
    return done.json


@pytest.mark.slow
def test_two_variables_of_one_name_are_in_the_dump_and_come_back_from_it_as_a_checkpoint(folder: Path) -> None:
    shown(folder, "twins.py", "-o", "one.npz")
    one = gs.load(folder / "one.npz")
    tensors = {"a/b": jnp.arange(4.0), "a": {"b": -jnp.arange(4.0)}}
    serialization = pytest.importorskip("flax.serialization", reason="flax is not installed")
    (folder / "two.msgpack").write_bytes(serialization.msgpack_serialize(tensors))
    shown(folder, "twins.py", "-o", "two.npz", "--checkpoint", "two.msgpack")
    two = gs.load(folder / "two.npz")
    np.testing.assert_array_equal(two["param/a%2Fb"], np.arange(4.0))
    np.testing.assert_array_equal(two["param/a/b"], -np.arange(4.0))
    shown(folder, "twins.py", "-o", "three.npz", "--checkpoint", "one.npz")
    assert gradscope("compare", "one.npz", "three.npz", "--bitwise", folder=folder).status == 0
    assert one.loss == gs.load(folder / "three.npz").loss
    assert gradscope("compare", "one.npz", "two.npz", "--select", "param/a%2Fb", folder=folder).status == 1


@sampled(
    "options", [["--stop-gradient", "w"], ["--feed", "w=fed.npy"], ["--fetch", "w"], ["--of", "w"], ["--wrt", "w"]]
)
def test_an_ambiguous_name_is_refused_with_the_keys_of_its_values(folder: Path, options: list[str]) -> None:
    done = gradscope("dump", "like.py", *options, "-o", "out.npz", folder=folder)
    assert done.status == 2
    assert "w is ambiguous" in done.errors
    assert "write param/w or activation/w" in done.errors
    for key in ("param/w", "activation/w"):
        shown(folder, "like.py", options[0], options[1].replace("w", key, 1), "-o", "out.npz")


@pytest.mark.slow
def test_wrt_a_key_is_one_family_and_a_pattern_may_be_several(folder: Path) -> None:
    def gradients(wrt: str) -> set[str]:
        rows = shown(folder, "like.py", "--wrt", wrt, "-o", "out.npz")["rows"]
        return {row["family"] for row in rows if row["family"].endswith("_grad")}

    assert gradients("param/w") == {"param_grad"}
    assert gradients("activation/w") == {"activation_grad"}
    assert gradients("w*") == {"param_grad", "activation_grad"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["scan", "nested", "fori", "mapped", "unending"])
def test_what_a_loop_made_can_be_fed_and_the_loop_is_not_needed(folder: Path, kind: str) -> None:
    (folder / "loop.py").write_text(LOOP.replace("KIND", kind))
    found = shown(folder, "loop.py", "--feed", "mid=fed.npy", "--batch-size", "3", "-o", "fed.npz")
    assert found["loss"] == pytest.approx(0.5 * 3 * 4.5)
    assert found["ledger"]["eliminated"] > 0
    ledger = gradscope("show", "fed.npz", "--ledger", folder=folder).output
    assert "loop[*]/cell" in ledger.replace("[*][*]", "[*]")
    assert "eliminated (not needed)" in ledger


@pytest.mark.slow
def test_what_operations_make_and_nothing_reads_is_in_the_ledger(folder: Path) -> None:
    (folder / "dropped.py").write_text("""
import jax, jax.numpy as jnp

def init(key):
    return {"w": jnp.arange(16.0).reshape(4, 4) + jnp.eye(4)}

def batch(key, size):
    return {"x": jnp.ones((size, 4))}

def loss(v, b):
    jnp.tanh(v["w"])
    jnp.cos(jnp.sin(v["w"]))
    with jax.named_scope("probe"):
        jnp.exp(v["w"])
    singular = jnp.linalg.svd(v["w"], full_matrices=False)[1]
    return (b["x"] @ v["w"]).sum() + singular.sum()
""")
    found = shown(folder, "dropped.py", "--ops", "-o", "dropped.npz")
    missing = gs.load(folder / "dropped.npz").ledger.missing
    assert {line.reason for line in missing} == {"eliminated"}
    called = {name.rpartition("/")[2] for line in missing for name in (line.name, *line.detail.split())}
    assert {"tanh", "sin", "cos", "exp", "svd.1", "svd.2"} <= called
    assert {"svd", "dot_general"} <= {row["name"].rpartition("/")[2] for row in found["rows"]}
    assert "eliminated (not needed)" in gradscope("show", "dropped.npz", folder=folder).output
    shown(folder, "dropped.py", "-o", "layers.npz")
    assert "probe" in {line.name for line in gs.load(folder / "layers.npz").ledger.missing}


def test_terms_stop_at_what_a_derivative_rule_closes_over(folder: Path) -> None:
    (folder / "ode.py").write_text("""
import jax, jax.numpy as jnp
from jax.experimental.ode import odeint

def init(key):
    return {"w": jnp.linspace(-0.5, 0.5, 4).reshape(2, 2)}

def batch(key, size):
    return {"y": jnp.linspace(0.1, 1.0, 2 * size).reshape(size, 2)}

def loss(v, b):
    return (odeint(lambda y, t: jnp.tanh(y @ v["w"]) - y * t, b["y"], jnp.linspace(0.0, 1.0, 4))[-1] ** 2).mean()
""")
    shown(folder, "ode.py", "--ops=inputs", "--batch-size", "3", "-o", "ode.npz")
    model: dict[str, Any] = {}
    exec((folder / "ode.py").read_text(), model)
    gradient = jax.jit(jax.grad(model["loss"]))(model["init"](None), model["batch"](None, 3))
    np.testing.assert_allclose(gs.load(folder / "ode.npz")["param_grad/w"], gradient["w"], rtol=1e-5)


@pytest.mark.slow
def test_a_parameter_that_is_stopped_has_its_gradient_as_in_tensorflow(folder: Path) -> None:
    full = shown(folder, "like.py", "-o", "whole.npz")
    stopped = shown(folder, "like.py", "--stop-gradient", "param/w", "-o", "stopped.npz")
    assert "disconnected" not in stopped["ledger"]
    assert stopped["loss"] == full["loss"]
    np.testing.assert_array_equal(
        gs.load(folder / "stopped.npz")["param_grad/w"], gs.load(folder / "whole.npz")["param_grad/w"]
    )


@pytest.mark.slow
def test_iterations_after_the_one_that_is_differentiated_have_no_gradient(folder: Path) -> None:
    (folder / "loop.py").write_text(LOOP.replace("KIND", "scan"))
    shown(folder, "loop.py", "--of", "loop[1]/cell", "--batch-size", "3", "-o", "first.npz")
    dump = gs.load(folder / "first.npz")
    has = [f"activation_grad/loop[{iteration}]/cell" in dump for iteration in range(3)]
    assert has == [True, True, False]
    assert "activation/loop[2]/cell" in dump


@pytest.mark.parametrize(
    "model",
    [
        "class Net:\n def init(self, key): ...\n def batch(self, key, size): ...\n def loss(self, v, b): ...\n",
        "from flax import nnx\nclass Net(nnx.Module):\n    def __init__(self, width, rngs): ...\n",
        "import flax.linen as nn\nclass Net(nn.Module):\n    width: int\n",
        "def Net(): ...\n",
    ],
    ids=["plain", "nnx", "linen", "function"],
)
def test_a_class_that_has_to_be_called_is_a_wrong_target_and_no_broken_model(folder: Path, model: str) -> None:
    if "flax" in model:
        pytest.importorskip("flax", reason="flax is not installed")
    (folder / "net.py").write_text(model)
    done = gradscope("inspect", "net.py:Net", "--input", "float32[2,4]", folder=folder)
    assert done.status == 2, done.errors
    assert "Net" in done.errors


@pytest.mark.slow
@pytest.mark.parametrize("pattern", ["loop[2]/cell", "activation/loop[2]/cell", "loop[0]/cell", "re:loop.[1-2]./cell"])
def test_a_printed_name_inside_of_a_while_loop_selects_its_last_iteration(folder: Path, pattern: str) -> None:
    (folder / "loop.py").write_text(LOOP.replace("KIND", "unending"))
    shown(folder, "loop.py", "-o", "all.npz")
    assert "activation/loop[2]/cell" in gs.load(folder / "all.npz")
    shown(folder, "loop.py", "-o", "one.npz", "--select", pattern)
    assert [key for key in gs.load(folder / "one.npz") if "cell" in key] == ["activation/loop[2]/cell"]


def test_the_last_iteration_of_a_while_loop_is_excluded_by_its_name(folder: Path) -> None:
    (folder / "loop.py").write_text(LOOP.replace("KIND", "unending"))
    shown(folder, "loop.py", "-o", "others.npz", "--select", "*", "--exclude", "loop[2]/cell")
    assert [key for key in gs.load(folder / "others.npz") if key.endswith("loop[2]/cell")] == []


def test_a_name_inside_of_a_while_loop_that_there_is_none_of_is_refused(folder: Path) -> None:
    (folder / "loop.py").write_text(LOOP.replace("KIND", "unending"))
    done = gradscope("dump", "loop.py", "--select", "loop[2]/cells", "-o", "none.npz", folder=folder)
    assert done.status == 2
    assert "did you mean loop[2]/cell" in done.errors
