"""The bench of depth: what tracing, planning and rewriting cost for an unrolled network, by its number of layers."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

#: How often each number of layers is measured.
ROUNDS = 3

LIMIT = 2.0
EXPONENT_LIMIT = 1.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Depth:
    """The seconds for a number of layers, the median and the extremes of the rounds.

    Attributes:
        layers: The number of layers.
        plain: CPU seconds of `jit(value_and_grad(loss)).lower` of the plain loss.
        ours: CPU seconds until the observing program is lowered: tracing, planning, rewriting.
        analysed: The part of it that traces and analyses the loss and plans.
        ratio: `ours / plain`, the median of the rounds' ratios.
        least: The smallest ratio.
        most: The largest.
    """

    layers: int
    plain: float
    ours: float
    analysed: float
    ratio: float
    least: float
    most: float


def measurements(*, quick: bool) -> Iterator[Depth]:
    """Yields the seconds for each number of layers; plain and observed take turns."""
    for layers in (30, 100, 300) if quick else (100, 300, 1_000, 3_000):
        rounds = [measured(layers) for _ in range(ROUNDS)]
        plain, analysed, ours = (statistics.median(each) for each in zip(*rounds, strict=True))
        ratios = [each[2] / each[0] for each in rounds]
        yield Depth(
            layers=layers, plain=plain, ours=ours, analysed=analysed, ratio=statistics.median(ratios),
            least=min(ratios), most=max(ratios),
        )  # fmt: skip


def exponents(found: list[Depth]) -> dict[str, float]:
    """Returns the exponents of growth between the smallest and the largest number of layers."""
    first, last = found[0], found[-1]
    growth = math.log(last.layers / first.layers)
    figures = {"plain": (first.plain, last.plain), "ours": (first.ours, last.ours)}
    figures["analysed"] = (first.analysed, last.analysed)
    return {name: math.log(large / small) / growth for name, (small, large) in figures.items()}


def measured(layers: int) -> tuple[float, float, float]:
    """Returns the CPU seconds of lowering the plain gradient, of tracing and planning, and until ours is lowered."""
    import jax
    import jax.numpy as jnp

    from gradscope.instrument.observing_program import observing_program
    from gradscope.instrument.query.capture_spec import CaptureSpec
    from gradscope.instrument.query.planning import make_plan
    from gradscope.instrument.taps import full_tensor
    from gradscope.tracing.tracer import trace_loss

    def loss(variables: Any, batch: Any) -> Any:
        x = batch
        for number in range(layers):
            with jax.named_scope(f"layer{number}"):
                x = jnp.tanh(x @ variables[f"w{number}"] + variables[f"b{number}"])
        return (x**2).mean()

    variables = {f"w{number}": jnp.ones((4, 4)) for number in range(layers)}
    variables |= {f"b{number}": jnp.ones(4) for number in range(layers)}
    batch = jnp.ones((2, 4))
    jax.clear_caches()
    _, plain = _timed(lambda: jax.jit(jax.value_and_grad(loss)).lower(variables, batch))
    jax.clear_caches()
    trace, tracing = _timed(lambda: trace_loss(loss, variables, batch))
    plan, planning = _timed(lambda: make_plan(trace, CaptureSpec(), full_tensor))
    program = observing_program(trace, plan)[0]
    leaves = jax.tree_util.tree_leaves((variables, batch))
    _, lowering = _timed(lambda: jax.jit(program).lower(leaves))
    return plain, tracing + planning, tracing + planning + lowering


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    begin = time.process_time()
    return work(), time.process_time() - begin
