"""Where an infinity or a NaN was born, in programs that make the first NaN or the first bad gradient elsewhere."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import gradscope as gs
from tests.support.data import evenly, filled
from tests.support.sampled import sampled

W = filled(1.0, 2, 3)
X = jax.device_put(np.array([[1.0, 2.0, 3.0], [1.0, 0.0, -2.0]], np.float32))
TABLE = evenly(0.0, 11.0, 4, 3)


def masked_sum(w: Any, x: Any) -> Any:
    p = jnp.where(x > 0, x * w, 0.0)
    plogp = p * jnp.log(p)  # here
    return (plogp * jnp.maximum(x, 0.0)).sum()


def entropy_under_where(w: Any, x: Any) -> Any:
    p = jnp.where(x > 0, x * w, 0.0)
    p = p / p.sum(-1, keepdims=True)
    bits = p * jnp.log(p) / jnp.log(2.0)  # here
    return (jnp.where(x > 0, bits, 0.0).sum(-1) / 2.0).sum()


def logarithm_to_base_2(w: Any, x: Any) -> Any:
    p = jnp.abs(x) * w
    return jnp.where(x > 0, p * jnp.log2(p), 0.0).sum()  # here


def naive_softmax(w: Any, x: Any) -> Any:
    e = jnp.exp(x * w * 100)  # here
    e = e * 1.5
    return (e / e.sum(-1, keepdims=True)).sum()


def reciprocal_times_zero(w: Any, x: Any) -> Any:
    r = 1 / (x * w - 2.0)  # here
    return (jnp.tanh(r * 2.0) * r * (x * 0.0)).sum()


def rsqrt_of_a_variance(w: Any, x: Any) -> Any:
    y = x[:1] * w[:1]
    scale = lax.rsqrt(y.var(0, keepdims=True))  # here
    return ((y - y.mean(0, keepdims=True)) * scale).sum()


def scanned(w: Any, x: Any) -> Any:
    def step(total: Any, row: Any) -> Any:
        logs = jnp.log(jnp.abs(row) * w[0])  # here
        return total + (jnp.abs(row) * logs).sum(), None

    return lax.scan(step, 0.0, x)[0]


def in_a_while(w: Any, x: Any) -> Any:
    def step(state: Any) -> Any:
        return state[0] + 1, jnp.log(state[1] - 1)  # here

    return lax.while_loop(lambda state: state[0] < 5, step, (0, x[0, 2]))[1] * w.sum()


def in_a_while_before_a_difference(w: Any, x: Any) -> Any:
    def step(state: Any) -> Any:
        return state[0] + 1, state[1] / (2.0 - state[0])  # here

    far = lax.while_loop(lambda state: state[0] < 4, step, (0, x[0, 2]))[1]
    return (far - far) * w.sum()


#: A primitive of its own since JAX 0.12.
LOG2 = jax.make_jaxpr(jnp.log2)(1.0).jaxpr.eqns[0].primitive.name

FORWARD = {
    masked_sum: ("log", (1, 1)),
    naive_softmax: ("exp", (0, 0)),
    reciprocal_times_zero: ("div", (0, 1)),
    rsqrt_of_a_variance: ("rsqrt", (0, 0)),
    scanned: ("log", (1,)),
    in_a_while: ("log", ()),
    in_a_while_before_a_difference: ("div", ()),
}
ONLY_GRADIENTS = {entropy_under_where: ("log", (1, 1)), logarithm_to_base_2: (LOG2, (1, 1))}


def line_of(function: Callable[..., Any]) -> str:
    lines, first = inspect.getsourcelines(function)
    (offset,) = (number for number, line in enumerate(lines) if line.endswith("# here\n"))
    return f"test_births.py:{first + offset}"


def origin_of(loss: Callable[..., Any], weights: Any = W) -> Any:
    with np.errstate(all="ignore"):
        (origin,) = gs.capture(loss, weights, X).origins
    return origin


def line_by_jax(loss: Callable[..., Any]) -> str:
    """Where JAX itself stops at the first infinity, with every operation run by itself."""
    with jax.disable_jit(), jax.debug_infs(True), pytest.raises(FloatingPointError) as raised:
        loss(W, X)
    (entry,) = [each for each in raised.traceback if str(each.path) == __file__][-1:]
    return f"test_births.py:{entry.lineno + 1}"


@pytest.mark.slow
@sampled("loss", [*FORWARD, *ONLY_GRADIENTS], ids=lambda loss: loss.__name__)
def test_the_infinity_is_named_and_not_what_makes_nan_of_it(loss: Any) -> None:
    found = origin_of(loss)
    primitive, index = (FORWARD | ONLY_GRADIENTS)[loss]
    assert (found.direction, found.primitive, found.source) == ("forward", primitive, line_of(loss)), found
    assert found.index[-len(index) :] == index if index else found.index == ()
    assert np.isfinite(found.operands).all()


@pytest.mark.slow
@pytest.mark.parametrize("loss", [masked_sum, naive_softmax, reciprocal_times_zero, rsqrt_of_a_variance])
def test_jax_stops_at_the_same_line(loss: Any) -> None:
    assert origin_of(loss).source == line_by_jax(loss)


@pytest.mark.parametrize("loss", ONLY_GRADIENTS, ids=lambda loss: loss.__name__)
def test_what_reaches_only_the_gradients_is_said_to(loss: Any) -> None:
    assert np.isfinite(loss(W, X))
    assert "does not reach the loss, but the gradients" in origin_of(loss).why


@pytest.mark.slow
@pytest.mark.parametrize("hidden", [False, True])
def test_an_index_beyond_a_table_is_named_with_its_place(hidden: bool) -> None:
    ids = jnp.array([[0, 2], [7, 1]])

    def loss(w: Any, x: Any) -> Any:
        rows = jnp.tanh(jnp.take(w, ids, axis=0) * 0.5)
        return (jnp.where((ids < 4)[..., None], rows * rows, 0.0) if hidden else rows).sum()

    found = origin_of(loss, TABLE)
    assert (found.direction, found.primitive) == ("forward", "gather")
    assert "index 7 (element [1, 0] of the indices) is beyond the 4 rows of the table" in found.why
    assert ("does not reach the loss" in found.why) is hidden


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "scale", "largest"),
    [(jnp.float8_e4m3fn, 1024.0, "448"), (jnp.float8_e5m2, 1e6, "57344"), (jnp.float16, 1e6, "65504")],
)
def test_a_cotangent_beyond_its_type_is_an_overflow(dtype: Any, scale: float, largest: str) -> None:
    found = origin_of(lambda w, x: (x * w.astype(dtype).astype(jnp.float32)).sum() * scale)
    assert (found.direction, found.primitive) == ("backward", "convert_element_type")
    assert f"overflow of {jnp.dtype(dtype).name} (largest {largest})" in found.why
    assert found.repair.startswith("scale the loss down")


@pytest.mark.slow
def test_a_row_that_is_masked_throughout_is_no_fault_of_the_mask() -> None:
    found = origin_of(lambda w, x: (jax.nn.softmax(jnp.where(x > 5, x * w, -jnp.inf)) * x).sum())
    assert (found.primitive, "every entry of the row is masked" in found.why) == ("sub", True)


@pytest.mark.slow
def test_a_difference_of_infinities_that_no_mask_made_is_no_masked_row() -> None:
    found = origin_of(in_a_while_before_a_difference)
    assert "infinity minus infinity: 1.5 divided by 0, in iteration 2 of the while" in found.why


@pytest.mark.slow
def test_an_infinity_is_the_origin_also_where_differences_beside_it_overflow() -> None:
    def loss(w: Any, x: Any) -> Any:
        with jax.named_scope("head"):
            logits = x.astype(jnp.float16) * (w * 30000).astype(jnp.float16)  # 30000, 60000, inf; 30000, 0, -60000
        return (logits - jnp.abs(logits)).astype(jnp.float32).sum()  # NaN where it is inf, and beside it -120000

    found = origin_of(loss)
    assert (found.primitive, found.layer) == ("mul", "head")
    assert "overflow of float16 (largest 65504) in mul of 3 and 30000" in found.why


def test_an_infinity_that_is_stated_and_reaches_the_loss_is_called_a_constant() -> None:
    found = origin_of(lambda w, x: -jax.nn.log_softmax(jnp.where(x > 0, x * w, -jnp.inf))[1, 2])
    assert "a constant of the program that reaches the loss" in found.why


def test_the_search_can_be_left_out() -> None:
    dump = gs.capture(masked_sum, W, X, origins=False)
    assert not dump.origins
    assert not any("search" in phase for phase in dump.manifest.timings)


def test_a_search_that_fails_is_reported_and_takes_nothing_down(monkeypatch: pytest.MonkeyPatch) -> None:
    from gradscope.capturing.explain.nonfinite import origin_search

    def fails(*_args: Any, **_kwargs: Any) -> Any:
        raise TypeError("no such thing")

    monkeypatch.setattr(origin_search, "NonfiniteFlags", fails)
    dump = gs.capture(masked_sum, W, X)
    assert dump.origins == ()
    assert re.search("could not be explained: TypeError: no such thing", dump.manifest.note)
    assert dump["param_grad/value"].shape == W.shape


def test_an_infinity_that_nan_to_num_makes_finite_is_the_origin_of_the_next() -> None:
    def loss(w: Any, x: Any) -> Any:
        with jax.named_scope("quotient"):
            divided = w / 0.0
        with jax.named_scope("safe"):
            return jnp.nan_to_num(divided).sum() * x.sum()  # here

    (only,) = gs.capture(loss, jnp.ones(3), jnp.ones(3)).findings()
    assert (only.rule, only.name) == ("nonfinite", "quotient")
    again = f"the where at {line_of(loss)} makes it finite, and reduce_sum at {line_of(loss)} an Inf again"
    assert only.why == f"made the first Inf: 1 divided by 0 (element [0]); {again}"


@pytest.mark.slow
def test_an_infinity_outside_all_layers_is_reported_where_it_began_and_not_where_it_is_seen() -> None:
    def loss(w: Any, x: Any) -> Any:
        grown = jnp.exp(100 * w * x)  # here
        with jax.named_scope("total"):
            total = grown.sum()
        with jax.named_scope("safe"):
            return jnp.nan_to_num(total) * x.sum()

    dump = gs.capture(loss, jnp.ones(3), jnp.ones(3))
    (only,), (origin,) = dump.findings(), dump.origins
    assert (only.name, only.source, origin.primitive) == ("total", line_of(loss), "exp")
    assert "made the first Inf: exp of 100 overflows" in only.why


def test_an_infinity_that_a_clip_replaces_is_no_origin_of_another_overflow() -> None:
    def loss(w: Any, x: Any) -> Any:
        small = jnp.minimum(jnp.exp(100 * w * x), 1.0)
        return (w * small * 1e38).sum() * 1e9  # here

    (origin,) = gs.capture(loss, jnp.ones(3), jnp.ones(3)).origins
    assert (origin.primitive, origin.source) == ("mul", line_of(loss))


def test_a_function_with_its_own_derivative_rule_is_named() -> None:
    @jax.custom_vjp
    def spoiling(w: Any) -> Any:
        return w * 2

    spoiling.defvjp(lambda w: (w * 2, None), lambda _, gradient: (gradient * jnp.nan,))
    zero = jnp.zeros(3)
    (origin,) = gs.capture(lambda w, x: jax.scipy.special.xlogy(x * w, jnp.abs(x) * w).sum(), zero, jnp.ones(3)).origins
    assert origin.why == "sent back the first NaN: the derivative of xlogy at 0 and 0 (element [0]) is not finite"
    (origin,) = gs.capture(lambda w, x: (spoiling(w) * x).sum(), zero, jnp.ones(3)).origins
    assert "the custom_vjp spoiling made it in its own backward rule" in origin.why


def masked_near_the_loss(w: Any, x: Any) -> Any:
    with jax.named_scope("first"):
        h = jnp.sqrt(0 * w * x) + w * x  # here
    with jax.named_scope("residual"):
        h = h + jax.nn.relu(h)
    with jax.named_scope("inside"):
        v = jnp.where(x > 0, h, 0.0)
    with jax.named_scope("root"):
        r = jnp.sqrt(v)
    return jnp.where(x > 0, r, 0.0).sum()


@pytest.mark.slow
def test_a_gradient_that_a_mask_drops_is_passed_over_although_the_dump_has_it() -> None:
    dump = gs.capture(masked_near_the_loss, W, X)
    assert np.isnan(dump["activation_grad/inside"]).any()
    (origin,) = dump.origins
    assert (origin.direction, origin.primitive) == ("backward", "sqrt")
    assert origin.name.startswith("first")


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("broken", ["batch", "both"])
def test_an_input_that_is_not_finite_is_no_place_where_a_nan_was_made(dtype: str, broken: str) -> None:
    def loss(w: Any, x: Any) -> Any:
        with jax.named_scope("scores"):
            y = x * w
        return jnp.log(jnp.exp(y - y.max()).sum())

    x = jnp.array([1.0, jnp.inf, 2.0], dtype)
    w = jnp.array([1.0, 1.0, jnp.nan if broken == "both" else 1.0], dtype)
    dump = gs.capture(loss, w, x)
    first = dump.findings()[0]
    assert first.rule in ("nonfinite", "overflow")
    if broken == "both":  # the NaN is that of the parameter
        assert (first.family, first.why) == ("param", "has 1 NaN and 0 Inf before anything is computed (element [2])")
    else:
        assert first.family == "input"
        assert first.why == "has 0 NaN and 1 Inf of 3 elements: it was not finite before anything was computed"
        assert dump.origins[0].primitive == "sub"
