"""Flags state, for a value or gradient of a run, whether it has a NaN and whether an infinity.

Those that a dump has statistics of are known from there. A program observes others, a number for each in place of the
tensor, inside `jit`, `scan`, `checkpoint` and branches alike. Where only values are requested it has no backward pass.

Why not a flag for everything: compiling a thousand flags takes several times as long as compiling the step.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from gradscope.capturing.execution.order import ExecutionOrder
from gradscope.capturing.explain.nonfinite.single_run import run_once
from gradscope.instrument.observing_program import observing_program, observing_values
from gradscope.instrument.query.capture_spec import CaptureSpec
from gradscope.instrument.query.planning import make_plan
from gradscope.primitive_groups import MOVES
from gradscope.tracing.jaxpr.frames import OPERAND, ValueKey, iterations
from gradscope.tracing.jaxpr.iterations import ValueAt
from gradscope.tracing.layers.sites import Site
from gradscope.tracing.lookup.operations import Operations
from gradscope.tracing.tracer import Trace

#: The bits of a flag.
INF: Final = 1
NAN: Final = 2
#: Operations whose result has the elements of the first operand, all of them, but for their signs and places.
_COPIES: Final = MOVES | {"abs", "neg", "rev"}


@dataclass(frozen=True, slots=True)
class KnownFlags:
    """`KnownFlags` are those that are known without a further run.

    Attributes:
        values: Flags of values.
        gradients: Flags of the gradients with respect to values.
    """

    values: dict[ValueAt, int] = field(default_factory=dict[ValueAt, int])
    gradients: dict[ValueAt, int] = field(default_factory=dict[ValueAt, int])


class NonfiniteFlags:
    """`NonfiniteFlags` are those of the values and gradients of one run.

    Gradients are observed on request. Values are too, and all of them as soon as the flag of another is requested.

    Args:
        trace: The loss, operations included.
        leaves: Its flat arguments.
        known: What is known already.
        operations: The operations of the loss.
    """

    def __init__(self, trace: Trace, leaves: Sequence[Any], known: KnownFlags, operations: Operations) -> None:
        self._trace = trace
        self._operations = operations
        self._inputs = list(leaves)
        self._known = known
        self._plan = make_plan(trace, CaptureSpec(operations=True), _flag)
        self._sites = self._plan.sites
        self._numbers = {site.value: number for number, site in enumerate(self._sites)}
        self._order = ExecutionOrder.of_trace(trace)
        self._values: dict[int, Any] = {}
        self._cotangents: dict[int, Any] = {}
        self._gradients: dict[int, Any] = {}
        self._requested: set[int] = set()
        self._has_all_values = False

    def observe(self, gradients: Collection[ValueKey], values: Collection[ValueKey]) -> None:
        """Runs the loss forward and backward, and observes what is not known of some gradients and values.

        The gradients with respect to the arguments are observed, too.
        """
        chosen = self._numbered(gradients) & self._plan.gradients
        group = sorted(chosen | self._numbered(values))
        plan = replace(
            self._plan.part(group), gradients=frozenset(at for at, number in enumerate(group) if number in chosen)
        )
        program, reached = observing_program(self._trace, plan)
        shown = {at for at, number in enumerate(group) if self._sites[number].value in values}

        def flags(leaves: Sequence[Any]) -> tuple[Mapping[int, Any], Mapping[int, Any], Mapping[int, Any]]:
            observed = program(leaves)
            arguments = {
                number: _flag(gradient)
                for number, gradient in observed.gradients.items()
                if _argument(number) not in self._known.gradients
            }
            return {at: observed.captured.values[at] for at in shown}, observed.cotangents, arguments

        found, cotangents, arguments = jax.device_get(run_once(flags, self._inputs))
        self._values |= {group[at]: flag for at, flag in found.items()}
        self._cotangents |= {group[at]: flag for at, flag in cotangents.items() if at in reached.sites}
        self._gradients |= arguments
        self._requested |= chosen

    def observe_all_gradients(self) -> None:
        """Runs the loss forward and backward, and observes every gradient; what was known before no longer counts."""
        self._known = KnownFlags()
        self.observe([self._sites[number].value for number in self._plan.gradients], ())

    def observe_all_values(self) -> None:
        """Runs the loss forward, and observes every value; what was known before no longer counts.

        A NaN may be lost in another program, for example in the maximum of a fused kernel. Flags of one program agree.
        """
        group = [number for number, site in enumerate(self._sites) if self._copied(_first(site)) is None]
        plan = replace(self._plan.part(group), gradients=frozenset())
        found = jax.device_get(run_once(observing_values(self._trace, plan), self._inputs).values)
        self._values = {group[at]: flag for at, flag in found.items()}
        self._has_all_values = True

    def value(self, value_at: ValueAt) -> int:
        """Returns the flag of a value; 0 where it cannot be observed."""
        while (copied := self._copied(value_at)) is not None:
            value_at = copied
        number = self._numbers.get(value_at.value)
        if number in self._values:
            return self._at(self._values, value_at)
        if value_at in self._known.values and not (self._has_all_values and number is not None):
            return self._known.values[value_at]
        if is_argument(value_at.value):
            return int(_flag(self._inputs[value_at.value.position]))
        if number is None or self._has_all_values:
            return 0
        self.observe_all_values()
        return self._at(self._values, value_at)

    def gradient(self, value_at: ValueAt) -> int:
        """Returns the flag of the gradient with respect to a value; 0 where there is none, or it was not observed."""
        if value_at in self._known.gradients:
            return self._known.gradients[value_at]
        if is_argument(value_at.value):
            return int(self._gradients.get(value_at.value.position, 0))
        return self._at(self._cotangents, value_at)

    def has_gradient(self, value_at: ValueAt) -> bool:
        """Returns whether the gradient with respect to a value is known, or was observed."""
        if value_at in self._known.gradients:
            return True
        if is_argument(value_at.value):
            return value_at.value.position in self._gradients
        return self._numbers.get(value_at.value) in self._cotangents

    def may_have_gradient(self, value_at: ValueAt) -> bool:
        """Returns whether a gradient may flow through a value: there is one, or nothing was observed that says so."""
        if self.has_gradient(value_at):
            return True
        if is_argument(value_at.value):
            return not self._gradients and self._trace.arguments[value_at.value.position].differentiated
        number = self._numbers.get(value_at.value)
        return number is None or (number in self._plan.gradients and number not in self._requested)

    def unknown_gradients(self) -> Iterator[ValueAt]:
        """Yields every value, in every iteration, whose gradient can be observed and is not known."""
        for number in sorted(self._plan.gradients):
            site = self._sites[number]
            for iteration in iterations(site.loops):
                if (value_at := ValueAt(site.value, iteration)) not in self._known.gradients:
                    yield value_at

    def rank(self, value_at: ValueAt) -> int:
        """Returns the rank of a value in the order of execution; arguments come before everything."""
        number = self._numbers.get(value_at.value)
        if number is None:
            return -1
        site = self._sites[number]
        return self._order.rank(site.loops, site.order, value_at.iteration)

    def bad_gradients(self) -> Iterator[ValueAt]:
        """Yields every value whose gradient is not finite, arguments included, in every iteration."""
        yield from (value_at for value_at, flag in self._known.gradients.items() if flag)
        for number, flag in self._gradients.items():
            if flag:
                yield ValueAt(_argument(number).value, ())
        for number in sorted(self._cotangents):
            for at in np.argwhere(self._cotangents[number]).tolist():
                value_at = ValueAt(self._sites[number].value, _with_whiles(self._sites[number], tuple(at)))
                if value_at not in self._known.gradients:
                    yield value_at

    def _copied(self, value_at: ValueAt) -> ValueAt | None:
        """Returns the value with the same elements, but for their signs and places; None where there is none."""
        number = self._numbers.get(value_at.value)
        if number is None or self._sites[number].primitive not in _COPIES or not math.prod(self._sites[number].shape):
            return None
        return next(iter(self._operations.maker(value_at).values), None)

    def _numbered(self, values: Collection[ValueKey]) -> set[int]:
        return {self._numbers[value] for value in values if value in self._numbers}

    def _at(self, flags: Mapping[int, Any], value_at: ValueAt) -> int:
        number = self._numbers.get(value_at.value)
        if number is None or number not in flags:
            return 0
        return int(np.asarray(flags[number])[counted_iterations(self._sites[number], value_at)])


def flag_of(nan: int, inf: int) -> int:
    """Returns the flag of a tensor with so many NaNs and infinities."""
    return (NAN if nan else 0) | (INF if inf else 0)


def is_argument(value: ValueKey) -> bool:
    """Returns whether a value is one that the loss receives."""
    return not value.frame and value.equation == OPERAND


def _first(site: Site) -> ValueAt:
    return ValueAt(site.value, (0,) * len(site.loops))


def _argument(number: int) -> ValueAt:
    return ValueAt(ValueKey((), OPERAND, number), ())


def counted_iterations(site: Site, value_at: ValueAt) -> tuple[int, ...]:
    """Returns the index of one iteration among a site's observations, which have only the last of a `while`."""
    pairs = zip(value_at.iteration, site.loops, strict=True)
    return tuple(iteration for iteration, loop in pairs if loop.length is not None)


def _with_whiles(site: Site, at: tuple[int, ...]) -> tuple[int, ...]:
    known = iter(at)
    return tuple(0 if loop.length is None else next(known) for loop in site.loops)


def _flag(value: Any) -> Any:
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
