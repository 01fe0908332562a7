"""Tracing and planning take time in proportion to the program: twice the layers, about twice the time."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from gradscope.instrument.planning import Wanted, make_plan
from gradscope.tracing.fingerprint import fingerprint
from gradscope.tracing.frames import frame_tree
from gradscope.tracing.layers import find_layers
from gradscope.tracing.liveness import mark_live
from gradscope.tracing.origins import ParameterOrigins
from gradscope.tracing.reversal import mark_reach
from gradscope.tracing.sites import find_sites
from gradscope.tracing.tracer import trace_loss

SMALL, LARGE = 300, 2400


def deep(layers: int) -> Callable[..., Any]:
    """A loss of so many layers of five operations, ten to a block."""

    def loss(weights: Any, x: Any) -> Any:
        for number in range(layers):
            with jax.named_scope(f"block{number // 10}"), jax.named_scope(f"layer{number}"):
                x = jnp.sin(jnp.tanh(x * weights) + x) * x
        return x.sum()

    return loss


def seconds(layers: int) -> dict[str, float]:
    """Processor time of each stage."""
    weights = jnp.ones(3)
    clock: dict[str, float] = {}

    def timed(stage: str, run: Callable[[], Any]) -> Any:
        begin = time.process_time()
        result = run()
        clock[stage] = time.process_time() - begin
        return result

    gc.collect()
    gc.disable()
    try:
        trace = trace_loss(deep(layers), weights, weights)
        root = timed("frames", lambda: frame_tree(trace.jaxpr))
        timed("liveness", lambda: mark_live(root))
        timed("reach", lambda: mark_reach(root))
        found = timed("layers", lambda: find_layers(root, ParameterOrigins({0: "w"})))
        timed("sites", lambda: find_sites(root, found))
        timed("fingerprint", lambda: fingerprint(root))
        timed("plan", lambda: make_plan(trace, Wanted()))
    finally:
        gc.enable()
    return clock


def test_every_stage_grows_with_the_program_and_no_faster() -> None:
    seconds(SMALL)
    small, large = seconds(SMALL), seconds(LARGE)
    ratio = LARGE / SMALL
    # Twice over the ratio is noise, and what is quadratic is eight times over it; a millisecond is noise in itself.
    assert {stage for stage in small if large[stage] > 3 * ratio * max(small[stage], 0.001)} == set()


def test_ten_thousand_equations_are_no_matter_of_minutes() -> None:
    begin = time.process_time()
    trace = trace_loss(deep(2000), jnp.ones(3), jnp.ones(3))
    plan = make_plan(trace, Wanted())
    assert len(trace.jaxpr.eqns) > 10_000
    assert len(plan.sites) == 2000
    assert time.process_time() - begin < 20
