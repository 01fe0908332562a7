"""The law of names: no two values of a run have one name, and a name that several values could mean is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from tests.support.data import evenly, filled

TWINS: dict[str, Any] = {"a/b": evenly(1.0, 2.0, 4), "a": {"b": evenly(-1.0, 1.0, 4)}}
X = evenly(0.0, 1.0, 2, 4)


def twins(params: Any, x: Any) -> Any:
    return jnp.sin(x @ params["a/b"]).sum() + (x @ params["a"]["b"] ** 2).sum()


def expected() -> dict[str, Any]:
    gradients = jax.grad(twins)(TWINS, X)
    return {
        "param/a%2Fb": TWINS["a/b"],
        "param/a/b": TWINS["a"]["b"],
        "param_grad/a%2Fb": gradients["a/b"],
        "param_grad/a/b": gradients["a"]["b"],
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "observed",
    [
        lambda: gs.capture(twins, TWINS, X),
        lambda: gs.value_and_grad(twins, observe="tensors")(TWINS, X)[1],
    ],
    ids=["capture", "value_and_grad"],
)
def test_two_parameters_of_one_name_are_both_there(observed: Callable[[], Any]) -> None:
    found = observed()
    assert {key for key in found if key.startswith("param")} == set(expected())
    for key, tensor in expected().items():
        np.testing.assert_allclose(np.asarray(found[key]), tensor, rtol=1e-6)


@pytest.mark.slow
def test_a_pattern_selects_one_of_two_parameters_of_one_name_and_a_comparison_pairs_both() -> None:
    assert set(gs.capture(twins, TWINS, X, select="a%2Fb", families=["param"])) == {"param/a%2Fb"}
    other = gs.capture(twins, {**TWINS, "a/b": TWINS["a/b"] * 2}, X)
    rows = {row.name: row for row in gs.compare(gs.capture(twins, TWINS, X), other).rows if row.family == "param"}
    assert {name: row.status for name, row in rows.items()} == {"a/b": "same", "a%2Fb": "different"}


def test_gradients_of_two_arguments_of_one_name_are_those_of_jax() -> None:
    found = gs.gradients(twins, [TWINS, X], ys="0", xs=["params/a%2Fb", "argument/params/a/b", "param/a%2Fb"])
    for key, gradient in zip(("a%2Fb", "a/b", "a%2Fb"), found, strict=True):
        np.testing.assert_allclose(gradient, expected()[f"param_grad/{key}"], rtol=1e-6)
    with pytest.raises(gs.UsageError, match="ambiguous") as refused:
        gs.gradients(twins, [TWINS, X], ys="0", xs="params/a/b")
    assert refused.value.hint == "write argument/params/a/b or argument/params/a%2Fb"


W = {"w": evenly(0.5, 1.5, 3, 3)}
ONES = filled(1.0, 3, 3)


def like_its_parameter(params: Any, x: Any) -> Any:
    return jnp.sin(x @ params["w"]).sum()  # without scopes, the layer has the name of the parameter


@pytest.mark.parametrize(
    ("options", "candidates"),
    [
        ({"stop_gradients": "w"}, "write param/w or activation/w"),
        ({"feed": {"w": ONES}}, "write param/w or activation/w"),
        ({"fetch": "w"}, "write param/w or activation/w"),
        ({"fetch": "gradient/w"}, "write gradient/param/w or gradient/activation/w"),
        ({"feed": {"gradient/w": ONES}}, "write gradient/param/w or gradient/activation/w"),
    ],
)
def test_a_name_of_a_parameter_and_a_layer_is_refused_with_the_keys_of_both(options: Any, candidates: str) -> None:
    with pytest.raises(gs.UsageError, match="w is ambiguous") as refused:
        gs.capture(like_its_parameter, W, ONES, **options)
    assert refused.value.hint == candidates


@pytest.mark.slow
def test_every_candidate_that_is_named_can_be_requested() -> None:
    fed = {key: gs.capture(like_its_parameter, W, ONES, feed={key: ONES * 2}) for key in ("param/w", "activation/w")}
    assert fed["param/w"].loss == pytest.approx(float(like_its_parameter({"w": ONES * 2}, ONES)))
    assert fed["activation/w"].loss == pytest.approx(float(jnp.sin(ONES * 2).sum()))
    of_layer, of_parameter = gs.gradients(like_its_parameter, [W, ONES], ys="0", xs=["activation/w", "param/w"])
    np.testing.assert_allclose(of_layer, jnp.cos(ONES @ W["w"]), rtol=1e-6)
    np.testing.assert_allclose(of_parameter, jax.grad(like_its_parameter)(W, ONES)["w"], rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "candidates"),
    [
        ({"ys": "x", "xs": "argument/x"}, "write argument/x or output/x"),
        ({"ys": "output/x", "xs": "x"}, "write argument/x or output/x"),
        ({"ys": "output/x", "xs": "argument/x", "stop_gradients": "x"}, "write argument/x or output/x"),
        ({"ys": "h", "xs": "argument/x"}, "write activation/h or output/h"),
    ],
)
def test_a_name_of_an_output_and_of_something_else_is_refused(options: Any, candidates: str) -> None:
    def fun(x: Any) -> Any:
        with jax.named_scope("h"):
            squared = x**2
        return {"x": x**3, "h": squared * 10}

    with pytest.raises(gs.UsageError, match="is ambiguous") as refused:
        gs.gradients(fun, [3.0], **options)
    assert refused.value.hint == candidates
    assert gs.gradients(fun, [3.0], ys="output/x", xs="argument/x") == [27.0]
    assert gs.gradients(fun, [3.0], ys="output/h", xs="activation/h") == [10.0]


def test_an_output_that_is_the_layer_of_its_name_is_one_value() -> None:
    def fun(x: Any) -> Any:
        with jax.named_scope("h"):
            return {"h": x**2}

    assert gs.gradients(fun, [3.0], ys="h", xs="x") == [6.0]


def test_gradients_and_a_capture_call_layers_the_same() -> None:
    names = [key for key in gs.capture(like_its_parameter, W, ONES, ops=True) if key.startswith("activation/")]
    assert "activation/w/dot_general" in names
    found = gs.gradients(like_its_parameter, [W, ONES], ys="0", xs=names)
    assert all(gradient is not None for gradient in found)
