"""What `gradscope dump` says about where a NaN began and why a gradient is zero, and what it does where it cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

import gradscope as gs
from tests.integration.command import gradscope

HEAD = """
import jax
import jax.numpy as jnp

def batch(key, size):
    return {"x": jnp.ones((size, 4))}
"""

FLOAT8 = (
    HEAD
    + """
def init(key):
    return {"w": jnp.full((4,), 0.3)}

def loss(v, b):
    return (b["x"] @ v["w"].astype(jnp.float8_e4m3fn).astype(jnp.float32)).sum() * 1024.0
"""
)

PADDING = (
    HEAD
    + """
def init(key):
    return {"w": jnp.ones(3), "c": jnp.zeros(())}

def loss(v, b):
    return jnp.pad(v["w"], (0, 4), constant_values=v["c"])[:3].sum() + 0 * b["x"].sum()
"""
)

KEY_BIAS = (
    HEAD
    + """
def init(key):
    keys = jax.random.split(key, 2)
    return {"w": jax.random.normal(keys[0], (4, 6)), "shift": jnp.zeros(())}

def loss(v, b):
    x = b["x"] * jnp.linspace(0.5, 1.5, 4)[None, :]
    return -jax.nn.log_softmax(x @ v["w"] + v["shift"])[:, 0].mean()
"""
)


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def dumped(source: str, *options: str) -> str:
    Path("model.py").write_text(source)
    result = gradscope("dump", "model.py", "-o", "out.npz", "--force", *options, folder=Path.cwd())
    assert result.status == 0, result.errors
    return result.output


@pytest.mark.slow
def test_an_overflow_is_reported_as_one_and_is_in_the_dump() -> None:
    printed = " ".join(dumped(FLOAT8).split())
    assert "overflow of float8_e4m3fn (largest 448)" in printed
    assert "repair scale the loss down" in printed
    (origin,) = gs.load("out.npz").origins
    assert (origin.primitive, origin.direction) == ("convert_element_type", "backward")


def test_the_search_for_an_origin_can_be_left_out() -> None:
    assert "Where it began" not in dumped(FLOAT8, "--no-origin")
    assert gs.load("out.npz").origins == ()


@pytest.mark.slow
def test_the_padding_value_of_a_pad_is_explained() -> None:
    assert "not taken by slice at model.py" in " ".join(dumped(PADDING).split())
    (cause,) = [cause for cause in gs.load("out.npz").causes if cause.family == "param_grad"]
    assert (cause.name, cause.rounding) == ("c", False)


def test_an_explanation_that_fails_is_reported_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    from gradscope.capturing.explain.zeros import zero_uses

    def fails(*_arguments: object, **_keywords: object) -> None:
        raise TypeError("no rule for it")

    monkeypatch.setattr(zero_uses.EquationUse, "gradient", fails)
    monkeypatch.setattr(zero_uses, "pulled_back", fails)
    printed = " ".join(dumped(PADDING).split())
    assert "not followed beyond pad at model.py" in printed
    assert "which could not be explained: TypeError: no rule for it" in printed
    assert gs.load("out.npz").manifest.complete


@pytest.mark.slow
def test_a_gradient_of_rounding_errors_has_its_cause_in_the_dump() -> None:
    dumped(KEY_BIAS)
    (cause,) = [cause for cause in gs.load("out.npz").causes if cause.family == "param_grad"]
    assert (cause.name, cause.rounding) == ("shift", True)
    assert "log_softmax at model.py" in cause.why


def test_an_index_of_a_shard_is_named_as_the_factor() -> None:
    source = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, PartitionSpec as P

mesh = Mesh(np.array(jax.devices()[:1]), ("d",))

def init(key):
    return {"w": jnp.ones(4)}

def batch(key, size):
    return {"x": jnp.arange(4.0)}

def loss(v, b):
    def f(w, x):
        with jax.named_scope("sin"):
            s = jnp.sin(w * x)
        return jax.lax.psum((s * jax.lax.axis_index("d").astype(jnp.float32)).sum(), "d")
    return jax.shard_map(f, mesh=mesh, in_specs=(P("d"), P("d")), out_specs=P())(v["w"], b["x"])
"""
    printed = " ".join(dumped(source).split())
    assert "multiplied by exact zeros in mul at model.py:17: axis_index is 0" in printed
