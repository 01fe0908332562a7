"""What the loss depends on, and what its gradient reaches, before anything has run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import pallas_call

from gradscope.tracing.dataflow.reachability import Reach
from gradscope.tracing.tracer import Trace, trace_loss
from tests.support.data import evenly

X = evenly(-1.0, 1.0, 3)


def under(name: str, function: Callable[..., Any], *values: Any) -> Any:
    with jax.named_scope(name):
        return function(*values)


def traced(function: Callable[[Any, Any], Any]) -> Trace:
    return trace_loss(lambda w, x: function(w, x).sum(), X, X)


def reach(trace: Trace) -> dict[str, Reach]:
    return {site.names[0].template: site.reach for site in trace.sites if site.names}


def live(trace: Trace) -> list[str]:
    """Primitives of the live equations of all frames, in order."""
    return [
        frame.jaxpr.eqns[number].primitive.name
        for frame in trace.root.walk()
        for number in sorted(trace.liveness.live(frame))
        if number not in frame.children
    ]


# --- liveness ----------------------------------------------------------------------------------------------------


def test_what_the_loss_does_not_depend_on_is_dead() -> None:
    trace = trace_loss(lambda w, x: (jnp.sin(w).sum(), jnp.cos(x)), X, X)
    assert live(trace) == ["sin", "reduce_sum"]


def test_a_call_is_followed_output_by_output() -> None:
    assert live(traced(lambda w, x: jax.jit(lambda: (jnp.sin(w), jnp.cos(x)))()[0])) == ["reduce_sum", "sin"]


def test_a_checkpoint_is_followed_output_by_output() -> None:
    both = jax.checkpoint(lambda w, x: (jnp.sin(w), jnp.cos(x)))
    assert live(traced(lambda w, x: both(w, x)[0])) == ["reduce_sum", "sin"]


def test_a_carry_keeps_alive_what_another_iteration_makes_of_it() -> None:
    def step(carry: Any, _: None) -> Any:
        first, second, third = carry
        return (second, jnp.sin(first), jnp.cos(third)), jnp.tan(third)

    trace = traced(lambda w, x: jax.lax.scan(step, (w, x, w), None, length=3)[0][0])
    assert live(trace) == ["reduce_sum", "sin"]


def test_every_branch_is_followed_and_so_is_what_chooses() -> None:
    trace = traced(lambda w, x: jax.lax.cond(jnp.exp(x[0]) > 1, jnp.sin, jnp.cos, w))
    assert {"exp", "gt", "sin", "cos"} <= set(live(trace))


def test_a_while_loop_is_taken_as_a_whole() -> None:
    def body(state: Any) -> Any:
        return state[0] + 1, jnp.sin(state[1]), jnp.cos(state[2])

    trace = traced(lambda w, x: jax.lax.while_loop(lambda state: state[0] < 3, body, (0, w, x))[1])
    assert {"sin", "cos"} <= set(live(trace))


def test_printing_keeps_nothing_alive() -> None:
    def function(w: Any, x: Any) -> Any:
        jax.debug.print("{}", jnp.cos(x))
        return jnp.sin(w)

    assert live(traced(function)) == ["sin", "reduce_sum"]


# --- what the gradient reaches -----------------------------------------------------------------------------------


def test_a_value_that_the_loss_is_made_from_has_a_gradient() -> None:
    assert reach(traced(lambda w, x: under("a", jnp.sin, w) * x)) == {"a": Reach.GRADIENT}


@pytest.mark.parametrize("stop", [jax.lax.stop_gradient, jnp.floor, jnp.round, jnp.sign], ids=lambda f: f.__name__)
def test_nothing_arrives_before_what_is_constant_wherever_it_is_smooth(stop: Any) -> None:
    found = reach(traced(lambda w, x: under("after", lambda: stop(under("before", jnp.sin, w)) * x)))
    assert found == {"after/before": Reach.NOTHING, "after": Reach.GRADIENT}


def test_nothing_arrives_at_integers_and_before_them() -> None:
    def function(w: Any, x: Any) -> Any:
        index = under("index", jnp.argmax, under("before", jnp.sin, w))
        return x[index] + under("cast", lambda: index.astype(x.dtype))

    assert reach(traced(function)) == {"before": Reach.NOTHING, "index": Reach.NOTHING, "cast": Reach.GRADIENT}


def looped(x: Any, iterations: Any) -> Any:
    return jax.lax.fori_loop(0, iterations, lambda _, carry: under("step", jnp.sin, carry), x)


def of_while(function: Callable[[Any, Any, Any], Any]) -> Trace:
    return trace_loss(lambda w, batch: function(w, *batch).sum(), X, (X, jnp.int32(2)))


def test_what_goes_through_a_while_loop_is_barred_and_what_comes_out_is_not() -> None:
    found = reach(
        of_while(lambda w, x, iterations: under("out", lambda: looped(under("in", jnp.sin, x), iterations) * 2) * w)
    )
    assert found.pop("out") is Reach.GRADIENT
    assert {"out/in", "out[*]/step"} <= set(found)
    assert set(found.values()) == {Reach.BARRED}


def test_a_while_loop_that_is_cut_off_bars_nothing() -> None:
    def function(w: Any, x: Any, iterations: Any) -> Any:
        made = under("in", jnp.sin, x)
        return made * jax.lax.stop_gradient(looped(made, iterations)) * w

    assert reach(of_while(function))["in"] is Reach.GRADIENT


def test_a_carry_of_a_while_loop_that_the_loss_does_not_take_bars_nothing() -> None:
    def function(w: Any, x: Any, iterations: Any) -> Any:
        aside, taken = under("aside", jnp.sin, x), under("taken", jnp.cos, x)
        body = lambda _, state: (state[0] * 2, state[1] * 3)  # noqa: E731
        return jax.lax.fori_loop(0, iterations, body, (aside, taken))[1] * w + aside

    found = reach(of_while(function))
    assert (found["aside"], found["taken"]) == (Reach.GRADIENT, Reach.BARRED)


def test_a_while_loop_bars_from_inside_other_frames() -> None:
    def function(w: Any, x: Any, iterations: Any) -> Any:
        made = under("in", jnp.sin, x)
        step = lambda carry, _: (jax.jit(looped)(carry, iterations), None)  # noqa: E731
        return jax.lax.scan(step, made, None, length=2)[0] * w

    assert reach(of_while(function))["in"] is Reach.BARRED


def test_zeros_that_jax_fills_in_are_no_gradient_and_are_barred_all_the_same() -> None:
    def function(w: Any, x: Any, iterations: Any) -> Any:
        zeros, barred = under("zeros", jnp.sin, x), under("barred", jnp.cos, x)
        step = lambda carry, _: ((carry[0] * w, carry[1] * 2, looped(carry[2], iterations)), None)  # noqa: E731
        return jax.lax.scan(step, (w, zeros, barred), None, length=2)[0][0]

    found = reach(of_while(function))
    assert (found["zeros"], found["barred"]) == (Reach.ZEROS, Reach.BARRED)


def test_a_host_callback_bars_even_where_nothing_depends_on_it() -> None:
    def function(w: Any, x: Any) -> Any:
        made = under("in", jnp.sin, x)
        jax.pure_callback(np.sin, jax.ShapeDtypeStruct(made.shape, made.dtype), made, vmap_method="sequential")
        return made * w

    assert reach(traced(function)) == {"in": Reach.BARRED}


def in_kernel(x: Any) -> Any:
    def kernel(read: Any, written: Any) -> None:
        written[...] = jnp.exp(read[...])

    return pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=True)(x)


@pytest.mark.parametrize("primitive", [lambda x: jax.lax.igamma_grad_a(x + 3, x + 3), in_kernel])
def test_a_primitive_without_a_derivative_bars(primitive: Callable[[Any], Any]) -> None:
    def function(w: Any, x: Any) -> Any:
        return primitive(jax.lax.stop_gradient(under("in", jnp.sin, x))) * under("beside", jnp.cos, x) * w

    found = reach(traced(function))
    assert (found["in"], found["beside"]) == (Reach.NOTHING, Reach.GRADIENT)

    def stopped(w: Any, x: Any) -> Any:
        return primitive(under("in", lambda x: jnp.sin(jax.lax.stop_gradient(x)), x)) * w

    assert reach(traced(stopped)) == {"in": Reach.BARRED}


def test_an_input_that_a_while_loop_prepares_is_not_differentiated_and_a_parameter_is_the_users_to_know() -> None:
    trace = of_while(lambda w, x, iterations: looped(x, iterations) * w)
    found = {leaf.family: (leaf.differentiated, leaf.forward_only) for leaf in trace.arguments if leaf.shape}
    assert found == {"param": (True, False), "input": (False, True)}
    trace = of_while(lambda w, x, iterations: looped(w, iterations) * x)
    found = {leaf.family: (leaf.differentiated, leaf.forward_only) for leaf in trace.arguments if leaf.shape}
    assert found == {"param": (True, False), "input": (True, False)}
