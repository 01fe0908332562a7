"""Tracing and planning are work in proportion to the program: twice the layers, twice the work."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from gradscope.instrument.query.capture_spec import CaptureSpec
from gradscope.instrument.query.planning import make_plan
from gradscope.tracing.dataflow.liveness import liveness_of
from gradscope.tracing.dataflow.reachability import reachability_of
from gradscope.tracing.jaxpr.fingerprint import fingerprint
from gradscope.tracing.jaxpr.frames import frame_tree
from gradscope.tracing.layers.layers import find_layers
from gradscope.tracing.layers.parameter_views import ParameterOrigins
from gradscope.tracing.layers.sites import find_sites
from gradscope.tracing.leaves import variable_leaves
from gradscope.tracing.tracer import trace_loss
from tests.support.data import filled
from tests.support.work import calls

WEIGHTS = filled(1.0, 3)
SMALL, LARGE = 30, 150


def deep(layers: int) -> Callable[..., Any]:
    """A loss of so many layers of five operations, ten to a block."""

    def loss(weights: Any, x: Any) -> Any:
        for number in range(layers):
            with jax.named_scope(f"block{number // 10}"), jax.named_scope(f"layer{number}"):
                x = jnp.sin(jnp.tanh(x * weights) + x) * x
        return x.sum()

    return loss


def work(layers: int) -> dict[str, int]:
    """Calls that each stage makes."""
    trace = trace_loss(deep(layers), WEIGHTS, WEIGHTS, operations=True)
    root = frame_tree(trace.jaxpr)
    liveness, reachability = liveness_of(root), reachability_of(root)
    found = find_layers(root, liveness, ParameterOrigins({0: "w"}), operations=True)
    stages: dict[str, Callable[[], Any]] = {
        "frames": lambda: frame_tree(trace.jaxpr),
        "liveness": lambda: liveness_of(root),
        "reach": lambda: reachability_of(root),
        "layers": lambda: find_layers(root, liveness, ParameterOrigins({0: "w"}), operations=True),
        "sites": lambda: find_sites(root, found, liveness, reachability),
        "fingerprint": lambda: fingerprint(root),
        "plan": lambda: make_plan(trace, CaptureSpec(operations=True)),
        "terms": lambda: make_plan(trace, CaptureSpec(operations=True, operands=True, terms=True)),
        "variables": lambda: variable_leaves(
            {"params": {f"{number}": WEIGHTS for number in range(layers)}, "state": WEIGHTS}
        ),
    }
    return {stage: calls(run) for stage, run in stages.items()}


@pytest.mark.slow
def test_every_stage_grows_with_the_program_and_no_faster() -> None:
    work(1)  # what is done once, whatever the size
    small, large = work(SMALL), work(LARGE)
    assert {stage for stage in small if large[stage] > 1.2 * (LARGE / SMALL) * small[stage]} == set()


def test_a_plan_of_more_operations_than_python_has_frames_is_made() -> None:
    trace = trace_loss(deep(400), WEIGHTS, WEIGHTS, operations=True)
    sites, equations = len(make_plan(trace, CaptureSpec(operations=True)).sites), len(trace.jaxpr.eqns)
    assert sites == equations > sys.getrecursionlimit()
