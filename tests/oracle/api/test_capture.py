"""`gs.capture` of any function: the gradients are those of `jax.value_and_grad`, and every argument has its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.errors import ModelError, UsageError
from tests.support.data import evenly, filled

W = {"w": evenly(-1.0, 1.0, 3), "b": filled(1.0)}
X = {"x": evenly(0.0, 5 / 6, 2, 3), "y": filled(1.0, 2)}


def loss(params: Any, batch: Any, train: bool = True) -> Any:
    with jax.named_scope("dense"):
        out = jnp.tanh(batch["x"] @ params["w"] + params["b"][None])
    return ((out - batch["y"]) ** 2).mean() * (1.0 if train else 0.5)


def keys(dump: gs.Dump, *families: str) -> set[str]:
    return {key for key in dump if key.partition("/")[0] in families}


def assert_gradients(dump: gs.Dump, expected: dict[str, Any]) -> None:
    assert keys(dump, "param_grad") == expected.keys()
    for key, gradient in expected.items():
        np.testing.assert_allclose(dump[key], gradient, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("train", [True, False])
def test_what_is_no_array_is_passed_as_it_is(train: bool) -> None:
    dump = gs.capture(loss, W, X, train)
    value, gradients = jax.value_and_grad(loss)(W, X, train)
    assert dump.loss == pytest.approx(float(value))
    assert_gradients(dump, {f"param_grad/{name}": gradient for name, gradient in gradients.items()})
    assert keys(dump, "param", "input") == {"param/w", "param/b", "input/x", "input/y"}


def test_it_captures_where_jit_is_disabled() -> None:
    expected = jax.grad(loss)(W, X)
    with jax.disable_jit():
        dump = gs.capture(loss, W, X)
    assert_gradients(dump, {f"param_grad/{name}": gradient for name, gradient in expected.items()})


@pytest.mark.slow
def test_a_batch_may_have_leaves_that_are_no_arrays() -> None:
    def scaled(params: Any, batch: Any) -> Any:
        return batch["apply"](params, batch) * batch["scale"] if batch["train"] else 0.0

    dump = gs.capture(scaled, W, {**X, "train": True, "apply": loss, "scale": 2.0, "none": None})
    assert keys(dump, "input") == {"input/x", "input/y", "input/scale"}
    assert float(dump["input_grad/scale"]) == pytest.approx(float(loss(W, X)))


def test_an_array_without_values_is_refused_by_its_name() -> None:
    with pytest.raises(UsageError, match=r"^input/empty is of dtype float0, which has no values to store"):
        gs.capture(loss, W, {**X, "empty": np.zeros(3, jax.dtypes.float0)})


def test_auxiliary_outputs_that_jax_has_no_type_for_are_left_out() -> None:
    masked = np.ma.masked_array([1.0, 2.0], [True, False])
    dump = gs.capture(lambda p, x: (loss(p, x), {"tokens": 5_000_000_000, "masked": masked, "rows": 4.0}), W, X)
    assert keys(dump, "aux") == {"aux/rows"}


def test_arrays_of_numpy_are_saved_as_the_program_receives_them(tmp_path: Path) -> None:
    wide = jax.tree.map(np.float64, (W, X))
    gs.save(tmp_path / "wide.npz", gs.capture(loss, *wide))
    with gs.load(tmp_path / "wide.npz") as dump:
        assert_gradients(dump, {f"param_grad/{name}": each for name, each in jax.grad(loss)(W, X).items()})
        assert dump["param/w"].dtype == np.float32


def test_several_differentiated_arguments_have_their_names() -> None:
    def product(left: Any, right: Any, x: Any) -> Any:
        return (left["w"] * right * x).sum()

    args = ({"w": X["y"]}, X["y"] * 2, X["y"] * 3)
    dump = gs.capture(product, *args, argnums=(0, -2))
    of_left, of_right = jax.grad(product, (0, 1))(*args)
    assert_gradients(dump, {"param_grad/left/w": of_left["w"], "param_grad/right": of_right})
    assert keys(dump, "input", "input_grad") == {"input/value", "input_grad/value"}


def test_several_other_arguments_have_their_names() -> None:
    dump = gs.capture(
        lambda x, params, *more: (params * x["a"] * more[0]).sum(), {"a": 2.0}, jnp.ones(2), 3.0, argnums=1
    )
    assert keys(dump, "param", "input") == {"param/value", "input/x/a", "input/2"}
    assert_gradients(dump, {"param_grad/value": [6.0, 6.0]})


def test_an_argument_may_be_called_as_a_collection_of_flax() -> None:
    dump = gs.capture(lambda params, others: params * others, 2.0, 3.0, argnums=(0, 1))
    assert_gradients(dump, {"param_grad/params": 3.0, "param_grad/others": 2.0})


def test_auxiliary_output_may_be_anything() -> None:
    aux = {"out": jnp.ones(2), "name": "dense", "count": 3}
    dump = gs.capture(lambda params, batch: (loss(params, batch), aux), W, X, has_aux=True)
    assert keys(dump, "aux") == {"aux/out", "aux/count"}


def test_a_function_without_a_pair_is_refused_with_has_aux() -> None:
    with pytest.raises(ModelError, match=r"must return a pair \(loss, aux\)"):
        gs.capture(loss, W, X, has_aux=True)


@pytest.mark.parametrize(
    ("argnums", "error"), [(2, TypeError), ((0, 2), TypeError), (-3, ValueError), ("0", TypeError), (0.0, TypeError)]
)
def test_positions_are_refused_as_by_jax(argnums: Any, error: type[Exception]) -> None:
    for differentiate in (lambda: jax.grad(loss, argnums)(W, X), lambda: gs.capture(loss, W, X, argnums=argnums)):
        with pytest.raises(error):
            differentiate()


@pytest.mark.parametrize(
    "transformed",
    [
        lambda: jax.jit(lambda w: gs.capture(loss, w, X).loss)(W),
        jax.jit(lambda: gs.capture(loss, W, X).loss),
        lambda: jax.grad(lambda w: gs.capture(loss, w, X).loss)(W),
        lambda: jax.vmap(lambda x: gs.capture(lambda w, x: (w["w"] * x).sum(), W, x).loss)(X["x"]),
        lambda: jax.grad(lambda w: gs.capture(lambda x: (x * w).sum(), X["x"][0]).loss)(W["w"][0]),
        lambda: jax.jvp(lambda w: gs.capture(lambda x: (x * w).sum(), X["x"][0]).loss, (W["w"][0],), (W["w"][0],)),
    ],
    ids=["jit", "jit of no arguments", "grad", "vmap", "grad of what is closed over", "jvp of what is closed over"],
)
def test_inside_a_transformation_it_says_what_to_call(transformed: Any) -> None:
    with pytest.raises(UsageError, match=r"inside jit, grad, vmap or scan") as refused:
        transformed()
    assert "gs.value_and_grad" in (refused.value.hint or "")


def test_what_a_traced_function_left_in_a_variable_is_told() -> None:
    left: list[Any] = []
    jax.eval_shape(lambda w: left.append(w["w"]), W)
    with pytest.raises(UsageError, match="has left in a variable") as refused:
        gs.capture(lambda w, x: (x["x"] @ left[0]).sum() + w["w"].sum(), W, X)
    assert "let loss take from its arguments what init makes" in (refused.value.hint or "")


def test_positional_and_keyword_only_parameters_are_named_by_their_path() -> None:
    assert keys(gs.capture(jnp.vdot, jnp.ones(2), jnp.ones(2)), "param", "input") == {"param/value", "input/value"}


def test_two_values_of_one_name_are_distinguished() -> None:
    params = {"a/b": jnp.full(2, 2.0), "a": {"b": jnp.full(2, 3.0)}}
    dump = gs.capture(lambda params: (params["a/b"] ** 2 + params["a"]["b"] ** 3).sum(), params)
    assert keys(dump, "param") == {"param/a/b", "param/a%2Fb"}
    np.testing.assert_array_equal(dump["param_grad/a%2Fb"], [4.0, 4.0])
    np.testing.assert_array_equal(dump["param_grad/a/b"], [27.0, 27.0])


@pytest.mark.slow
def test_operations_have_the_findings_of_layers_and_no_more() -> None:
    def block(x: Any, p: Any) -> Any:
        with jax.named_scope("norm"):
            normed = x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-6) * p["scale"][None]
        with jax.named_scope("dense"):
            return x + jnp.tanh(normed @ p["kernel"]), None

    def loss(p: Any, x: Any) -> Any:
        return jnp.square(jax.lax.scan(block, x, p)[0]).mean()

    random = np.random.default_rng(0)
    p = {"scale": np.ones((3, 8), np.float32), "kernel": random.normal(0, 8**-0.5, (3, 8, 8)).astype(np.float32)}
    batch = random.normal(size=(16, 8)).astype(np.float32)
    assert gs.capture(loss, p, batch).findings() == ()
    assert gs.capture(loss, p, batch, ops="outputs").findings() == ()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ops": "input"}, "ops is 'input'"),
        ({"depth": 0}, "depth is 0"),
        ({"families": "acivation"}, "no family 'acivation'"),
    ],
    ids=["ops", "depth", "families"],
)
def test_an_option_that_is_none_of_its_values_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        gs.capture(loss, W, X, **options)


def test_none_is_nothing_chosen() -> None:
    chosen: dict[str, Any] = {"select": None, "exclude": None, "fetch": None, "stop_gradients": None}
    assert gs.capture(loss, W, X, **chosen).keys() == gs.capture(loss, W, X).keys()


def test_a_variable_that_is_no_array_is_refused_as_by_jax() -> None:
    for run in (jax.grad(loss), lambda variables, batch: gs.capture(loss, variables, batch)):
        with pytest.raises(TypeError, match="'q'"):
            run(W | {"name": "q"}, X)


class _Model:
    """What is no array, though it has a dtype, as a model of Keras does."""

    dtype = "float32"


@pytest.mark.parametrize("given", [_Model(), object(), "text"])
def test_an_argument_that_is_no_array_is_named(given: object) -> None:
    with pytest.raises(TypeError, match=f"is of type {type(given).__name__}, which is no array and no number"):
        gs.capture(lambda model, x: jnp.square(x).sum(), given, jnp.ones(3))
