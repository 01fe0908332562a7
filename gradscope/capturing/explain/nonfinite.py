"""The search for the origin of a NaN or an infinity: the first operation that made one, forward or backward.

The loss runs once more. Statistics of every operation's result and gradient replace the tensors, inside `jit`, `scan`,
`checkpoint` and branches alike.

Forward, the search goes back from the loss: from a result that is not finite to the operands that are not, until all
operands of an operation are finite. A NaN is followed through NaNs only: an infinity may be intended, as in a mask, but
the operation that makes a NaN of it is an error.

Backward, where the loss is finite, the search takes the gradient that is not finite and closest to the loss. One of the
uses of its value returned it. The backward rules of these uses run once more, one at a time, to find which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gradscope import naming
from gradscope.capturing.execution.order import ExecutionOrder
from gradscope.capturing.execution.preparation import Prepared
from gradscope.capturing.explain.known_causes import explain_backward, explain_forward
from gradscope.capturing.explain.replay import Replay
from gradscope.dump.manifest.manifest import Origin
from gradscope.instrument.observing_program import observing_program
from gradscope.instrument.query.capture_spec import CaptureSpec
from gradscope.instrument.query.planning import make_plan
from gradscope.instrument.rewriting.core_statistics import CORE_NUMBERS, core_statistics
from gradscope.tracing.jaxpr.frames import OPERAND, ValueKey, resolve
from gradscope.tracing.jaxpr.iterations import ValueAt, sources
from gradscope.tracing.layers.sites import Site
from gradscope.tracing.lookup.operations import Operations
from gradscope.tracing.tracer import Trace, trace_loss


class _Counts(NamedTuple):
    """A `_Counts` holds numbers of elements that are not finite."""

    nan: int
    inf: int

    @property
    def any(self) -> bool:
        return self.nan + self.inf > 0


_NONE = _Counts(0, 0)


def find_origins(loss: Callable[[Any, Any], Any], prepared: Prepared) -> tuple[Origin, ...]:
    """Returns the operation in which a value that is not finite began; nothing where all values are finite.

    Args:
        loss: The loss.
        prepared: Its arguments.

    Returns:
        One origin: forward where the loss is not finite, backward where only gradients are not.
    """
    trace = prepared.resolved.trace
    if not trace.operations:
        trace = trace_loss(loss, prepared.variables, prepared.batch, operations=True)
    counted, operations = _Counted(trace, prepared.leaves), Operations(trace)
    replay = Replay(trace, prepared.leaves)
    start = resolve(trace.root, trace.root.jaxpr.outvars[0])
    if start is not None and counted.value(ValueAt(start, ())).any:
        found = _forward(trace, counted, operations, replay, ValueAt(start, ()))
    else:
        found = _backward(counted, operations, replay)
    return () if found is None else (found,)


class _Counted:
    """A `_Counted` run knows for every value and gradient how many elements are not finite.

    Args:
        trace: The loss, operations included.
        leaves: Its flat arguments.
    """

    def __init__(self, trace: Trace, leaves: Any) -> None:
        plan = make_plan(trace, CaptureSpec(operations=True), core_statistics)
        program, self.reached = observing_program(trace, plan)
        self._observed = jax.jit(program)(leaves)
        self._leaves = leaves
        self._numbers = {site.value: number for number, site in enumerate(plan.sites)}
        self._order = ExecutionOrder.of_trace(trace)
        self.sites: tuple[Site, ...] = plan.sites

    def value(self, value_at: ValueAt) -> _Counts:
        """Returns the counts of a value; zeros where it was not observed."""
        if _is_argument(value_at.value):
            return _counts_in(self._leaves[value_at.value.position])
        number = self._numbers.get(value_at.value)
        return _NONE if number is None else self._at(self._observed.captured.values[number], number, value_at)

    def gradient(self, value_at: ValueAt) -> _Counts:
        """Returns the counts of the gradient with respect to a value; zeros where there is none."""
        if _is_argument(value_at.value):
            gradient = self._observed.gradients.get(value_at.value.position)
            return _NONE if gradient is None else _counts_in(gradient)
        number = self._numbers.get(value_at.value)
        if number is None or number not in self.reached.sites:
            return _NONE
        return self._at(self._observed.cotangents[number], number, value_at)

    def rank(self, value_at: ValueAt) -> int:
        """Returns the rank of a value in the order of execution."""
        if _is_argument(value_at.value):
            return -1
        site = self.sites[self._numbers[value_at.value]]
        return self._order.rank(site.loops, site.order, value_at.iteration)

    def bad_gradients(self) -> Iterator[ValueAt]:
        """Yields every value whose gradient is not finite, arguments included, in every iteration."""
        arguments = (ValueAt(ValueKey((), OPERAND, number), ()) for number in self._observed.gradients)
        yield from (value_at for value_at in arguments if self.gradient(value_at).any)
        for number in sorted(self.reached.sites):
            bad = self._nonfinite(self._observed.cotangents[number])
            for at in np.argwhere(bad).tolist():
                yield ValueAt(self.sites[number].value, self._with_whiles(number, tuple(at)))

    def _nonfinite(self, vectors: Any) -> np.ndarray:
        host = np.asarray(vectors)
        return np.asarray(CORE_NUMBERS["nan"](host) + CORE_NUMBERS["inf"](host))

    def _with_whiles(self, number: int, at: tuple[int, ...]) -> tuple[int, ...]:
        known = iter(at)
        return tuple(0 if loop.length is None else next(known) for loop in self.sites[number].loops)

    def _at(self, vectors: Any, number: int, value_at: ValueAt) -> _Counts:
        loops = self.sites[number].loops
        at = tuple(
            iteration for iteration, loop in zip(value_at.iteration, loops, strict=True) if loop.length is not None
        )
        vector = np.asarray(vectors[at] if at else vectors)
        return _Counts(int(CORE_NUMBERS["nan"](vector)), int(CORE_NUMBERS["inf"](vector)))


def _is_argument(value: ValueKey) -> bool:
    return not value.frame and value.equation == OPERAND


def _counts_in(array: Any) -> _Counts:
    host = np.asarray(array)
    if not jnp.issubdtype(host.dtype, jnp.inexact):
        return _NONE
    wide = host if host.dtype.kind in "fc" else host.astype(np.float32)
    return _Counts(int(np.isnan(wide).sum()), int(np.isinf(wide).sum()))


def _forward(trace: Trace, counted: _Counted, operations: Operations, replay: Replay, start: ValueAt) -> Origin | None:
    """Returns the earliest operation before the loss whose result is not finite although its operands are."""
    only_nan = counted.value(start).nan > 0

    def bad(value_at: ValueAt) -> bool:
        counts = counted.value(value_at)
        return counts.nan > 0 if only_nan else counts.any

    found: dict[ValueAt, None] = {}
    seen, waiting = {start}, [start]
    while waiting:
        value_at = waiting.pop()
        culprits = [each for each in _behind(operations, value_at) if bad(each)]
        if not culprits:
            found[value_at] = None
        waiting += [each for each in culprits if each not in seen]
        seen.update(culprits)
    first = min(found, key=counted.rank)
    if _is_argument(first.value):
        return _bad_argument(trace, counted.value(first), first)
    operation = operations.maker(first)
    return explain_forward(operation, replay.forward(operation))


def _behind(operations: Operations, value_at: ValueAt) -> list[ValueAt]:
    """Returns the values from which a value is made."""
    if _is_argument(value_at.value):
        return []
    found = sources(operations.frames, value_at)  # elsewhere in loops and branches, or the operands of its equation
    return found if found or value_at.value.equation == OPERAND else operations.maker(value_at).values


def _bad_argument(trace: Trace, counts: _Counts, value_at: ValueAt) -> Origin:
    leaf = trace.arguments[value_at.value.position]
    return Origin(
        direction="forward",
        name=naming.key_of(leaf.family, leaf.name),
        why=f"has {counts.nan:,} NaN and {counts.inf:,} Inf before anything is computed",
        repair="look at where it comes from: the data, the checkpoint, the step before",
    )


def _backward(counted: _Counted, operations: Operations, replay: Replay) -> Origin | None:
    """Returns the operation closest to the loss whose gradient is not finite although the one that it receives is."""
    bad = list(counted.bad_gradients())
    if not bad:
        return None
    for operation in operations.readers(max(bad, key=counted.rank)):
        failure = replay.backward(operation)
        if failure is not None:
            return explain_backward(operation, failure, operations)
    return None
