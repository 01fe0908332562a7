"""Which values get to a target only through equations that are cut, at whatever depth, in one walk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from gradscope.tracing.dataflow.cut_flow import CutFlow
from gradscope.tracing.dataflow.forward import ForwardFlow, FrameVariable
from gradscope.tracing.tracer import Trace, trace_loss
from tests.support.data import filled
from tests.support.work import calls

X = filled(1.0, 3)


def cut_flow(trace: Trace, primitive: str) -> tuple[CutFlow, list[FrameVariable]]:
    """The flow to the loss, cut at a primitive, of all values that the equations of the root make and it receives."""
    root = trace.root
    made = [variable for equation in root.jaxpr.eqns for variable in equation.outvars]
    starts = [FrameVariable(root, variable) for variable in [*root.jaxpr.invars, *made]]
    target = FrameVariable(root, root.jaxpr.outvars[0])
    flow = CutFlow(
        ForwardFlow(), starts, target, lambda _: True,
        lambda step: step.frame.jaxpr.eqns[step.number].primitive.name == primitive,
    )  # fmt: skip
    return flow, starts


def scanned(w: Any, x: Any) -> Any:
    return lax.scan(lambda carry, _: (jnp.sin(carry * w), None), x, None, length=2)[0]


@pytest.mark.parametrize(
    ("function", "cut"),
    [
        (lambda w, x: jnp.sin(w) + x, True),
        (lambda w, x: jnp.sin(w) + w * x, False),
        (lambda w, x: jnp.sin(jnp.cos(w) * x) + jnp.sin(w), True),
        (lambda w, x: jax.jit(lambda a: jnp.sin(a * 2.0))(w) + x, True),
        (lambda w, x: jax.jit(lambda a: a * 2.0)(w) + x, False),
        (scanned, True),
    ],
)
def test_a_value_is_cut_off_where_all_of_its_ways_are(function: Callable[[Any, Any], Any], cut: bool) -> None:
    trace = trace_loss(lambda w, x: function(w, x).sum(), X, X)
    flow, (w, *_) = cut_flow(trace, "sin")
    assert bool(flow.cuts_of(w)) == cut
    assert {each.frame.jaxpr.eqns[each.number].primitive.name for each in flow.cuts_of(w)} <= {"sin"}


def test_every_cut_on_the_ways_is_named_and_no_other() -> None:
    trace = trace_loss(lambda w, x: (jnp.sin(w) + jnp.sin(w * x) + jnp.sin(x * 2.0)).sum(), X, X)
    flow, (w, x, *_) = cut_flow(trace, "sin")
    assert (len(flow.cuts_of(w)), len(flow.cuts_of(x))) == (2, 2)


def test_work_grows_with_the_depth_and_not_with_its_square() -> None:
    def work(layers: int) -> int:
        def loss(w: Any, x: Any) -> Any:
            for _ in range(layers):
                x = jnp.tanh(x * w)
            return jnp.sin(x).sum()

        trace = trace_loss(loss, X, X)
        return calls(lambda: cut_flow(trace, "sin"))

    work(1)
    assert work(200) < 4.5 * work(50)
