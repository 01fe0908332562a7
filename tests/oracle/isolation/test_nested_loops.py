"""Layers in loops of loops: as a script, and in a `while` loop, of which a dump has too little."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from gradscope.errors import UsageError
from tests.oracle.isolation.test_reproduction import ran, reproduction
from tests.support.sampled import sampled

pytestmark = pytest.mark.usefixtures("compiled_in_a_hurry")

_X = jax.random.normal(jax.random.key(0), (5, 4))
_STACK = 0.5 * jax.random.normal(jax.random.key(1), (3, 4, 4))


def _cell(w: Any, h: Any) -> Any:
    with jax.named_scope("cell"):
        return jnp.tanh(h @ w)


def _over_all(h: Any, stack: Any) -> tuple[Any, None]:
    return jax.lax.scan(lambda h, w: (_cell(w, h), None), h, stack)[0], None


def _shared(params: Any, x: Any) -> Any:
    """Each iteration of the outer loop reads the same stack of weights."""
    return (jax.lax.scan(lambda h, _: _over_all(h, params["w"]), x, length=2)[0] ** 2).mean()


def _of_stacks(params: Any, x: Any) -> Any:
    return (jax.lax.scan(_over_all, x, params["w"])[0] ** 2).mean()


@pytest.mark.slow
@sampled("iteration", ["[0][1]", "[1][2]"])
@pytest.mark.parametrize(
    ("loss", "stack", "origin"),
    [(_shared, _STACK, "run"), (_of_stacks, jnp.stack([_STACK, -_STACK]), "dump")],
)
def test_a_weight_that_an_outer_loop_reads_again_has_terms_of_several_iterations(
    tmp_path: Path, loss: Any, stack: Any, origin: str, iteration: str
) -> None:
    found = reproduction(loss, {"w": stack}, _X, f"cell{iteration}")
    assert {each.origin for each in found.gradients if each.name == "w"} == {origin}
    assert ran(tmp_path, found).status == 0


def _searched(params: Any, x: Any, *, scope: str = "") -> Any:
    with jax.named_scope("in"):
        h = x @ params["w"][0]

    def step(carry: Any) -> Any:
        number, h = carry
        return number + 1, _over_all(h, jax.lax.stop_gradient(params["w"]))[0]

    with jax.named_scope(scope):
        _, found = jax.lax.while_loop(lambda carry: carry[0] < 3, step, (0, jax.lax.stop_gradient(h)))
        h = h + found
    with jax.named_scope("out"):
        return (h**2).mean()


@sampled(
    ("scope", "name", "around"),
    [("", "cell[2][1]", "before out"), ("", "cell", "before out"), ("solver", "solver/cell[2][1]", "solver")],
)
def test_a_layer_in_a_while_loop_is_refused_with_the_code_around_the_loop(
    tmp_path: Path, scope: str, name: str, around: str
) -> None:
    def loss(params: Any, x: Any) -> Any:
        return _searched(params, x, scope=scope)

    with pytest.raises(UsageError, match="is inside a while loop, of which a dump has the last iteration") as refused:
        reproduction(loss, {"w": _STACK}, _X, name)
    assert f"'{around}'" in str(refused.value.hint)
    assert ran(tmp_path, reproduction(loss, {"w": _STACK}, _X, around)).status == 0


def test_a_scope_whose_code_has_no_results_is_no_layer(tmp_path: Path) -> None:
    def loss(params: Any, x: Any) -> Any:
        with jax.named_scope("cell"):
            jax.lax.scan(lambda nothing, _: (nothing, None), (), params["w"])
        return jax.lax.scan(lambda h, w: (_cell(w, h), None), x, params["w"])[0].mean()

    with pytest.raises(UsageError, match="no layer is called cell") as refused:
        reproduction(loss, {"w": _STACK}, _X, "cell")
    assert "cell[2]" in str(refused.value.hint)
    assert ran(tmp_path, reproduction(loss, {"w": _STACK}, _X, "cell[2]")).status == 0
