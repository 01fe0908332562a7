"""SegmentsBetween: which known values, arguments aside, read which."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from gradscope.tracing.dataflow.between_known_values import SegmentsBetween
from gradscope.tracing.jaxpr.frames import OPERAND, ValueKey, iterations
from gradscope.tracing.jaxpr.iterations import ValueAt
from gradscope.tracing.tracer import Trace, trace_loss
from tests.support.data import filled

X = filled(1.0, 2, 3)
W = {"w": filled(1.0, 4, 3, 3)}


def readers(trace: Trace, *unknown: str) -> dict[str, list[str]]:
    """Who reads whom, by the names of layers and arguments; all layers' outputs known but some."""
    names = {
        ValueAt(site.value, iteration): str(site.names[0].at(iteration))
        for site in trace.sites
        if site.names
        for iteration in iterations(site.loops)
    }
    known = [value_at for value_at, name in names.items() if name not in unknown]
    names |= {ValueAt(ValueKey((), OPERAND, at), ()): leaf.name for at, leaf in enumerate(trace.arguments)}
    found = SegmentsBetween(trace.root, known).readers(known)
    return {names[read]: sorted(names[end] for end in ends) for read, ends in found.items()}


def forked(params: Any, batch: Any) -> Any:
    with jax.named_scope("dense"):
        x = batch @ params["w"][0]
    with jax.named_scope("left"):
        left = jnp.sin(x)
    with jax.named_scope("index"):
        index = jnp.argmax(x, axis=-1)
    with jax.named_scope("sum"):
        return (left + x + jnp.take_along_axis(left, index[:, None], axis=-1)).sum()


def test_a_value_is_read_by_all_that_is_made_of_it_without_a_known_value_between() -> None:
    trace = trace_loss(forked, W, X)
    assert readers(trace) == {"w": ["dense"], "value": ["dense"], "dense": ["left", "sum"], "left": ["sum"]}


def test_what_is_unknown_belongs_to_the_piece_behind_it() -> None:
    trace = trace_loss(forked, W, X)
    assert readers(trace, "left") == {"w": ["dense"], "value": ["dense"], "dense": ["sum"]}


def looped(params: Any, batch: Any) -> Any:
    def body(x: Any, kernel: Any) -> Any:
        with jax.named_scope("mix"):
            x = x @ kernel
        with jax.named_scope("act"):
            x = jnp.sin(x)
        return x, x.sum()

    with jax.named_scope("block"):
        x, sums = jax.lax.scan(jax.checkpoint(body), batch, params["w"], reverse=True)
    with jax.named_scope("end"):
        return x.sum() + sums.sum()


def test_a_iteration_of_a_loop_reads_the_iteration_before_and_the_last_is_read_outside() -> None:
    found = readers(trace_loss(looped, W, X))
    assert found["value"] == ["block[3]/mix"]
    assert found["w"] == [f"block[{iteration}]/mix" for iteration in range(4)]
    assert found["block[2]/mix"] == ["block[2]/act"]
    assert "block[1]/mix" in found["block[2]/act"]
    assert not any(reader.endswith("/mix") for reader in found["block[0]/act"])


def solved(params: Any, batch: Any) -> Any:
    kernel = params["w"][0] + 4.0 * jnp.eye(3)

    def solver(_matvec: Any, right: Any) -> Any:
        with jax.named_scope("guess"):
            guess = right / 4.0
        with jax.named_scope("sweep"):
            return guess + (right - kernel @ guess) / 4.0

    with jax.named_scope("right"):
        right = batch.sum(axis=0)
    with jax.named_scope("solved"):
        return jax.lax.custom_linear_solve(lambda x: kernel @ x, right, solver, solver).sum()


def test_a_solve_reads_its_operands_and_its_solver_nothing() -> None:
    assert readers(trace_loss(solved, W, X)) == {"w": ["solved"], "value": ["right"], "right": ["solved"]}
