"""`gradients`: the known cases of `tf.gradients`, and JAX's own derivatives of functions written for the purpose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name

import gradscope as gs
from gradscope.errors import ModelError, UsageError
from tests.support.data import evenly

W = [evenly(first, first + 2.0, 3) for first in (1.0, 4.0, 7.0, 10.0)]


def two_sums(w1: Any, w2: Any, w3: Any, w4: Any) -> Any:
    return {"z1": 3 * w1 + 2 * w2 + w3, "z2": -w3 + w4}


def same(found: list[Any], expected: list[Any]) -> None:
    assert [each is None for each in found] == [each is None for each in expected]
    for one, other in zip(found, expected, strict=True):
        if other is not None:
            np.testing.assert_allclose(one, other, rtol=1e-5)


# --- the cases of TensorFlow's own documentation and tests ---------------------------------------------------------


def test_several_ys_are_summed_each_under_its_initial_gradient() -> None:
    grad = jnp.array([-2.0, -3.0, -4.0])
    found = gs.gradients(two_sums, W, ys=["z1", "z2"], xs=["w1", "w2", "w3", "w4"], grad_ys=[grad, grad])
    same(found, [[-6, -9, -12], [-4, -6, -8], [0, 0, 0], [-2, -3, -4]])


def test_without_initial_gradients_they_are_ones() -> None:
    found = gs.gradients(two_sums, W, ys=["z1", "z2"], xs=["w1", "w2", "w3", "w4"])
    same(found, [np.full(3, 3.0), np.full(3, 2.0), np.zeros(3), np.ones(3)])


def sum_of_a_and_its_double(x: Any) -> Any:
    a = checkpoint_name(x * 1.0, "a")
    b = checkpoint_name(2 * a, "b")
    return a + b


def test_gradients_are_total_and_partial_where_stopped() -> None:
    total = gs.gradients(sum_of_a_and_its_double, [1.0], ys="0", xs=["a", "b"])
    same(total, [3.0, 1.0])
    partial = gs.gradients(sum_of_a_and_its_double, [1.0], ys="0", xs=["a", "b"], stop_gradients=["a", "b"])
    same(partial, [1.0, 1.0])


def test_a_y_is_its_own_x() -> None:
    same(gs.gradients(jnp.sin, [2.0], ys="value/sin", xs=["value/sin"], grad_ys=5.0), [5.0])
    same(gs.gradients(lambda x: x, [2.0], ys="x", xs="x"), [1.0])


def test_none_is_distinguished_from_zero() -> None:
    def loss(a: Any, b: Any, c: Any, d: Any) -> Any:
        return a * 0.0 + jax.lax.stop_gradient(b) + jnp.floor(d)

    found = gs.gradients(loss, [1.0, 2.0, 3.0, 4.0], ys="0", xs=["a", "b", "c"])
    same(found, [0.0, None, None])
    same(gs.gradients(lambda n: n * 2.0, [3], ys="0", xs="n"), [None])
    same(gs.gradients(lambda x: 3.0, [1.0], ys="0", xs="x"), [None])


# --- names -------------------------------------------------------------------------------------------------------


def network(params: Any, x: Any) -> Any:
    with jax.named_scope("first"):
        hidden = jnp.tanh(x @ params["first"]["kernel"])
    with jax.named_scope("second"):
        logits = hidden @ params["second"]
    return {"logits": logits, "norm": (logits**2).sum()}


PARAMS = {
    "first": {"kernel": np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)},
    "second": np.linspace(0, 1, 8, dtype=np.float32).reshape(4, 2),
}
X = np.linspace(-2, 2, 15, dtype=np.float32).reshape(5, 3)


@pytest.mark.slow
def test_arguments_outputs_layers_and_operations_have_names() -> None:
    hidden = jnp.tanh(X @ PARAMS["first"]["kernel"])
    expected, of_hidden = jax.grad(lambda h, w: ((h @ w) ** 2).sum(), argnums=(1, 0))(hidden, PARAMS["second"])
    names = ["params/second", "second", "first", "first/tanh", "first/dot_general"]
    found = gs.gradients(network, [PARAMS, X], ys="norm", xs=names)
    logits = hidden @ PARAMS["second"]
    same(found, [expected, 2 * logits, of_hidden, of_hidden, of_hidden * (1 - hidden**2)])


@pytest.mark.slow
def test_a_layer_is_as_good_a_y_as_an_output() -> None:
    of_layer = gs.gradients(network, [PARAMS, X], ys="second", xs="params/first/kernel")
    same(of_layer, [jax.grad(lambda p: network(p, X)["logits"].sum())(PARAMS)["first"]["kernel"]])


def test_arguments_may_be_given_by_name() -> None:
    found = gs.gradients(network, {"x": X, "params": PARAMS}, ys="norm", xs=["x"])
    same(found, [jax.grad(lambda x: network(PARAMS, x)["norm"])(X)])


@pytest.mark.slow
@pytest.mark.parametrize("wrap", [lambda body: body, jax.checkpoint, jax.jit])
def test_one_iteration_of_a_loop_is_a_value(wrap: Callable[..., Any]) -> None:
    def iteration(carry: Any, w: Any) -> Any:
        with jax.named_scope("cell"):
            carry = jnp.sin(carry * w)
        return carry, carry * 2

    def looped(w: Any, x: Any) -> Any:
        with jax.named_scope("rnn"):
            return jax.lax.scan(wrap(iteration), x, w)

    w, x = jnp.linspace(0.5, 1.5, 4), jnp.array(0.7)

    def after(value: Any, first: int) -> Any:
        for each in w[first:]:
            value = jnp.sin(value * each)
        return value

    states = _states(w, x)
    found = gs.gradients(looped, [w, x], ys="0", xs=[f"rnn[{n}]/cell" for n in range(4)])
    same(found, [jax.grad(after)(states[n], n + 1) for n in range(4)])
    inner = gs.gradients(looped, [w, x], ys="rnn[2]/cell", xs=["x", "w"])
    same(inner, list(jax.grad(lambda x, w: _states(w, x)[2], argnums=(0, 1))(x, w)))


def _states(w: Any, x: Any) -> list[Any]:
    states: list[Any] = []
    for each in w:
        x = jnp.sin(x * each)
        states.append(x)
    return states


@pytest.mark.slow
@pytest.mark.parametrize("stopped", [{1}, {0, 2}, {0, 1, 2}])
def test_a_stop_cuts_the_iterations_that_it_names(stopped: set[int]) -> None:
    def looped(x: Any, w: Any) -> Any:
        return jax.lax.scan(lambda c, _: (checkpoint_name(c * w, "cut") + c, None), x, None, length=3)[0]

    def with_stops(x: Any, w: Any) -> Any:
        for number in range(3):
            x = (jax.lax.stop_gradient(x * w) if number in stopped else x * w) + x
        return x

    found = gs.gradients(looped, [2.0, 3.0], ys="0", xs=["x", "w"], stop_gradients=[f"cut[{n}]" for n in stopped])
    same(found, list(jax.grad(with_stops, argnums=(0, 1))(2.0, 3.0)) if len(stopped) < 3 else [1.0, None])


def test_it_composes_with_jit() -> None:
    @jax.jit
    def program(x: Any) -> Any:
        return gs.gradients(lambda x: checkpoint_name(jnp.sin(x), "sine") ** 2, [x], ys="0", xs=["x", "sine"])

    same(program(0.3), [2 * np.sin(0.3) * np.cos(0.3), 2 * np.sin(0.3)])


# --- what cannot be asked ------------------------------------------------------------------------------------------


def test_what_cannot_be_requested_is_refused_in_a_sentence() -> None:
    def counted(n: Any, x: Any) -> Any:
        return n + 1, jax.nn.relu(x), jax.lax.while_loop(lambda c: c < 9.0, lambda c: c * 2.0, x)

    args = [3, 1.0]
    with pytest.raises(UsageError, match="no value is called y") as unknown:
        gs.gradients(counted, args, ys="y", xs="x")
    assert unknown.value.hint
    with pytest.raises(UsageError, match="0 is int32 and cannot be differentiated"):
        gs.gradients(counted, args, ys="0", xs="x")
    with pytest.raises(ModelError, match="pass a while loop"):
        gs.gradients(counted, args, ys="2", xs="x")
    with pytest.raises(UsageError, match=r"has shape \(3,\), expected \(\)"):
        gs.gradients(counted, args, ys="1", xs="x", grad_ys=jnp.ones(3))
    with pytest.raises(UsageError, match="2 initial gradients for 1 value"):
        gs.gradients(counted, args, ys=["1"], xs="x", grad_ys=[None, None])


def delayed(x: Any) -> Any:
    """A loop in which `b` has in every iteration what `a` was in the one before."""

    def step(carry: Any, _: Any) -> Any:
        a, _b = carry
        with jax.named_scope("a"):
            after = jnp.sin(a * x)
        with jax.named_scope("b"):
            before = a * 3
        return (after, before), None

    return jax.lax.scan(step, (x, x), None, length=4)[0][1]


def unrolled_delayed(x: float) -> tuple[Any, list[Any]]:
    """The same, written out: its result as a function of every `a`, and the values of these."""
    values = [x]
    for _ in range(4):
        values.append(float(jnp.sin(values[-1] * x)))
    return (lambda *made: made[2] * 3), values[1:]


def test_a_loop_passes_gradients_only_to_the_iterations_that_a_y_depends_on() -> None:
    unrolled, values = unrolled_delayed(0.7)
    direct = jax.grad(unrolled, argnums=(0, 1, 2, 3))(*values)
    found = gs.gradients(delayed, [0.7], ys="0", xs=["a[2]", "a[3]", "b[3]", "b[2]"])
    same(found, [float(direct[2]), None, 1.0, None])


@pytest.mark.slow
@pytest.mark.parametrize("reverse", [False, True])
def test_no_earlier_iteration_depends_on_a_later_one(reverse: bool) -> None:
    def fun(x: Any) -> Any:
        def step(carry: Any, t: Any) -> Any:
            with jax.named_scope("s"):
                carry = carry * x + t
            return carry, None

        return jax.lax.scan(step, x, jnp.arange(3.0), reverse=reverse)[0]

    first, middle, last = ("s[2]", "s[1]", "s[0]") if reverse else ("s[0]", "s[1]", "s[2]")
    same(gs.gradients(fun, [2.0], ys=first, xs=[last, middle, first, "x"]), [None, None, 1.0, 4.0])
    same(gs.gradients(fun, [2.0], ys=last, xs=[last, middle, first]), [1.0, 2.0, 4.0])
    same(gs.gradients(fun, [2.0], ys=last, xs=[first, middle], stop_gradients=middle), [None, 2.0])


@pytest.mark.slow
def test_iterations_of_loops_in_loops_are_distinguished() -> None:
    def fun(x: Any) -> Any:
        def inner(carry: Any, _: Any) -> Any:
            with jax.named_scope("in"):
                return jnp.sin(carry * x), None

        def outer(carry: Any, _: Any) -> Any:
            with jax.named_scope("out"):
                return jax.lax.scan(inner, carry, None, length=2)[0], None

        return jax.lax.scan(outer, x, None, length=3)[0]

    names = [key.partition("/")[2] for key in gs.capture(fun, 2.0) if key.startswith("activation/") and "/in" in key]
    assert len(names) == 6
    for number, y in enumerate(names):
        found = gs.gradients(fun, [2.0], ys=y, xs=names)
        assert [gradient is not None for gradient in found] == [at <= number for at in range(6)]


def test_a_list_for_one_name_is_said_to_be_one_array() -> None:
    with pytest.raises(gs.UsageError, match="has shape") as refused:
        gs.gradients(lambda z: {"y": z * z}, [3.0], ys="y", xs=["z"], grad_ys=[1.0])
    assert "give a list of names" in (refused.value.hint or "")
    same(gs.gradients(lambda z: {"y": z * z}, [3.0], ys=["y"], xs=["z"], grad_ys=[1.0]), [6.0])


@pytest.mark.slow
def test_truth_values_strings_and_functions_are_passed_as_they_are() -> None:
    def function(x: Any, scale: Any, twice: bool, options: dict[str, Any]) -> Any:
        out = options["activation"](x) * scale
        return {"y": 2 * out if twice and options["mode"] == "train" else out}

    for twice in (True, False):
        arguments: list[Any] = [W[0], 3.0, twice, {"activation": jnp.tanh, "mode": "train"}]
        found = gs.gradients(function, arguments, ys="y", xs=["x", "scale"])
        expected = jax.grad(lambda x, scale: function(x, scale, *arguments[2:])["y"].sum(), argnums=(0, 1))(W[0], 3.0)  # noqa: B023
        same(found, list(expected))
