"""A step of the user's own with an Equinox module has the names that a dump of the module has, and JAX's gradients."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("equinox", reason="equinox is not installed: pip install 'gradscope-jax[equinox]'")
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import gradscope as gs
from tests.integration.command import python
from tests.integration.test_readme import REPOSITORY, steps

pytestmark = pytest.mark.usefixtures("compiled_in_a_hurry")


class Block(eqx.Module):
    first: eqx.nn.Linear
    second: eqx.nn.Linear

    def __init__(self, key: Array) -> None:
        one, other = jax.random.split(key)
        self.first = eqx.nn.Linear(4, 4, key=one)
        self.second = eqx.nn.Linear(4, 4, key=other)

    def __call__(self, x: Array) -> Array:
        return x + self.second(jnp.tanh(self.first(x)))


class Net(eqx.Module):
    blocks: list[Block]
    head: eqx.nn.MLP

    def __init__(self, key: Array) -> None:
        keys = jax.random.split(key, 3)
        self.blocks = [Block(keys[0]), Block(keys[1])]
        self.head = eqx.nn.MLP(4, 3, 5, 1, key=keys[2])

    def __call__(self, x: Array) -> Array:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


NET = Net(jax.random.key(0))
BATCH = {"x": np.random.default_rng(0).standard_normal((6, 4), np.float32)}
ARRAYS, REST = eqx.partition(NET, eqx.is_inexact_array)


def loss(net: Any, batch: Any) -> Array:
    return jnp.square(jax.vmap(net)(batch["x"])).mean()


def of_arrays(arrays: Any, batch: Any) -> Array:
    return loss(eqx.combine(arrays, REST), batch)


@pytest.mark.parametrize("transform", [lambda step: step, jax.jit])
def test_a_step_of_a_modules_arrays_has_the_names_of_a_dump(transform: Callable[[Any], Any]) -> None:
    before = {cls: vars(cls)["__call__"] for cls in (Net, Block, eqx.nn.Linear)}
    (value, grads), seen = transform(gs.value_and_grad(of_arrays))(ARRAYS, BATCH)
    names = {key for key in gs.capture(loss, NET, BATCH).keys() if key.startswith("activation")}  # noqa: SIM118
    assert {"activation/blocks/0/first", "activation/blocks/1", "activation_grad/head/layers/0"} <= names
    assert {key for key in seen if key.startswith("activation")} == names
    expected_value, expected = jax.value_and_grad(of_arrays)(ARRAYS, BATCH)
    np.testing.assert_allclose(value, expected_value, rtol=1e-6)
    for one, other in zip(jax.tree.leaves(grads), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)
    assert {cls: vars(cls)["__call__"] for cls in before} == before


def test_a_dump_of_a_modules_arrays_has_the_names_of_a_dump_of_the_module() -> None:
    found, expected = gs.capture(of_arrays, ARRAYS, BATCH), gs.capture(loss, NET, BATCH)
    assert {*found.keys()} == {*expected.keys()}
    for key in expected.keys():  # noqa: SIM118
        np.testing.assert_allclose(found[key], expected[key], rtol=1e-5, atol=1e-7, err_msg=key)


def test_the_error_of_a_loss_of_modules_is_its_own() -> None:
    def failing(net: Any, batch: Any) -> Array:
        raise ValueError(f"a {type(net).__name__} fails")

    with pytest.raises(gs.ModelError, match="a Net fails") as raised:
        gs.capture(failing, NET, BATCH)
    assert raised.value.__cause__ is not None
    assert raised.value.__cause__.__context__ is None


def test_several_modules_are_named_by_their_arguments() -> None:
    def contrast(teacher: Any, student: Any, x: Any) -> Array:
        apart = jax.vmap(eqx.combine(student, REST))(x) - jax.vmap(eqx.combine(teacher, REST))(x)
        return jnp.square(apart + 1.0).mean()

    _, seen = gs.value_and_grad(contrast, argnums=(0, 1))(ARRAYS, ARRAYS, BATCH["x"])
    assert {"activation/teacher/blocks/0/first", "activation/student/blocks/0/first"} <= {*seen}


def test_a_module_whose_arrays_are_mapped_over_keeps_the_scope_of_equinox() -> None:
    def ensemble(nets: Any, x: Array) -> Array:
        return jnp.square(eqx.filter_vmap(lambda net: net(x))(nets)).mean()

    nets = eqx.filter_vmap(lambda key: eqx.nn.Linear(4, 2, key=key))(jax.random.split(jax.random.key(0), 3))
    (value, grads), seen = gs.value_and_grad(ensemble)(nets, BATCH["x"][0])
    assert "activation/eqx.nn.Linear" in seen
    expected_value, expected = jax.value_and_grad(ensemble)(nets, BATCH["x"][0])
    np.testing.assert_allclose(value, expected_value, rtol=1e-6)
    np.testing.assert_allclose(grads.weight, expected.weight, rtol=1e-5)


@pytest.mark.parametrize("static", [{}, {"static_argnums": 0}, {"static_argnames": "net"}], ids=str)
def test_a_probed_step_says_how_it_takes_a_module_and_leaves_a_static_one_to_jax(
    static: dict[str, Any], tmp_path: Path
) -> None:
    with gs.Probe(tmp_path / "run", every=1) as probe:

        def take(net: Any, arrays: Any, batch: Any) -> Any:
            return probe.value_and_grad(of_arrays)(arrays, batch)

        step = probe.jit(take, **static)
        if static:
            with pytest.raises(ValueError, match="Non-hashable static arguments"):
                step(NET, ARRAYS, BATCH)
            return
        with pytest.raises(
            gs.UsageError, match=r"take takes a module of Equinox, whose net\.head\.\S+ is no"
        ) as caught:
            step(NET, ARRAYS, BATCH)
        assert "params, static = eqx.partition(module, eqx.is_inexact_array)" in str(caught.value.hint)
        step(ARRAYS, ARRAYS, BATCH)


@pytest.mark.usefixtures("lenient")
def test_the_loop_of_the_guide_runs_as_it_is_written(tmp_path: Path) -> None:
    texts = [each.text for each in steps(REPOSITORY / "docs" / "guides" / "training-loops.md")]
    (text,) = [each for each in texts if "import equinox" in each]
    (tmp_path / "loop.py").write_text(text, encoding="utf-8")
    done = python(tmp_path / "loop.py", folder=tmp_path)
    assert done.status == 0, done.errors
    assert (tmp_path / "equinox").is_dir()
