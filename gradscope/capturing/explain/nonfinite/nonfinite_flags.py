"""Flags of what is not finite: for every value and gradient of a run, whether it has a NaN and whether an infinity.

One program observes them all, a number for each in place of the tensor, inside `jit`, `scan`, `checkpoint` and branches
alike. Where only values are requested it has no backward pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from gradscope.capturing.execution.order import ExecutionOrder
from gradscope.capturing.explain.nonfinite.single_run import run_once
from gradscope.instrument.observing_program import observing_program, observing_values
from gradscope.instrument.query.capture_spec import CaptureSpec
from gradscope.instrument.query.planning import make_plan
from gradscope.tracing.jaxpr.frames import OPERAND, ValueKey
from gradscope.tracing.jaxpr.iterations import ValueAt
from gradscope.tracing.layers.sites import Site
from gradscope.tracing.tracer import Trace

#: The bits of a flag.
INF: Final = 1
NAN: Final = 2


class NonfiniteFlags:
    """`NonfiniteFlags` are those of every value of one run, and of every gradient where these are requested.

    Args:
        trace: The loss, operations included.
        leaves: Its flat arguments.
        backward: Whether the gradients' are computed, too.
    """

    def __init__(self, trace: Trace, leaves: Sequence[Any], *, backward: bool) -> None:
        plan = make_plan(trace, CaptureSpec(operations=True), _flag)
        program, reached = observing_program(trace, plan)
        forward = observing_values(trace, replace(plan, gradients=frozenset()))

        def flags(leaves: Sequence[Any]) -> tuple[list[Any], Mapping[int, Any], Mapping[int, Any], Mapping[int, Any]]:
            own = [_flag(leaf) for leaf in leaves]
            if not backward:
                return own, forward(leaves), {}, {}
            observed = program(leaves)
            gradients = {number: _flag(gradient) for number, gradient in observed.gradients.items()}
            return own, observed.captured.values, observed.cotangents, gradients

        found = jax.device_get(run_once(flags, list(leaves)))
        self._leaves, self._values, cotangents, self._gradients = found
        self._cotangents = {number: each for number, each in cotangents.items() if number in reached.sites}
        self._numbers = {site.value: number for number, site in enumerate(plan.sites)}
        self._order = ExecutionOrder.of_trace(trace)
        self._sites = plan.sites

    def value(self, value_at: ValueAt) -> int:
        """Returns the flag of a value; 0 where it was not observed."""
        if is_argument(value_at.value):
            return int(self._leaves[value_at.value.position])
        return self._at(self._values, value_at)

    def gradient(self, value_at: ValueAt) -> int:
        """Returns the flag of the gradient with respect to a value; 0 where there is none."""
        if is_argument(value_at.value):
            return int(self._gradients.get(value_at.value.position, 0))
        return self._at(self._cotangents, value_at)

    def has_gradient(self, value_at: ValueAt) -> bool:
        """Returns whether the gradient with respect to a value was observed."""
        if is_argument(value_at.value):
            return value_at.value.position in self._gradients
        return self._numbers.get(value_at.value) in self._cotangents

    def may_have_gradient(self, value_at: ValueAt) -> bool:
        """Returns whether a gradient may flow through a value: it was observed, or the value was not."""
        return self.has_gradient(value_at) or not (is_argument(value_at.value) or value_at.value in self._numbers)

    def rank(self, value_at: ValueAt) -> int:
        """Returns the rank of a value in the order of execution; arguments come before everything."""
        number = self._numbers.get(value_at.value)
        if number is None:
            return -1
        site = self._sites[number]
        return self._order.rank(site.loops, site.order, value_at.iteration)

    def bad_gradients(self) -> Iterator[ValueAt]:
        """Yields every value whose gradient is not finite, arguments included, in every iteration."""
        for number, flag in self._gradients.items():
            if flag:
                yield ValueAt(ValueKey((), OPERAND, number), ())
        for number in sorted(self._cotangents):
            for at in np.argwhere(self._cotangents[number]).tolist():
                yield ValueAt(self._sites[number].value, _with_whiles(self._sites[number], tuple(at)))

    def _at(self, flags: Mapping[int, Any], value_at: ValueAt) -> int:
        number = self._numbers.get(value_at.value)
        if number is None or number not in flags:
            return 0
        return int(np.asarray(flags[number])[counted_iterations(self._sites[number], value_at)])


def is_argument(value: ValueKey) -> bool:
    """Returns whether a value is one that the loss receives."""
    return not value.frame and value.equation == OPERAND


def counted_iterations(site: Site, value_at: ValueAt) -> tuple[int, ...]:
    """Returns the index of one iteration among a site's observations, which have only the last of a `while`."""
    pairs = zip(value_at.iteration, site.loops, strict=True)
    return tuple(iteration for iteration, loop in pairs if loop.length is not None)


def _with_whiles(site: Site, at: tuple[int, ...]) -> tuple[int, ...]:
    known = iter(at)
    return tuple(0 if loop.length is None else next(known) for loop in site.loops)


def _flag(value: Any, *, passing: bool = False) -> Any:  # noqa: ARG001 - the same either way
    """Returns the flag of a value as a float32 scalar, a dtype that a sink can have; an observer."""
    dtype = jax.typeof(value).dtype
    if not jnp.issubdtype(dtype, jnp.inexact):
        return jnp.float32(0)
    return _reduced(jax.lax.stop_gradient(value))


@jax.jit  # traced once for each shape, where every value of the run has a flag
def _reduced(value: Any) -> Any:
    wide = value.astype(jnp.float32) if value.dtype.itemsize < np.dtype(np.float16).itemsize else value
    flags = jnp.where(jnp.isnan(wide), jnp.uint8(NAN), jnp.where(jnp.isinf(wide), jnp.uint8(INF), jnp.uint8(0)))
    return jax.lax.reduce(flags, jnp.uint8(0), jax.lax.bitwise_or, tuple(range(flags.ndim))).astype(jnp.float32)
