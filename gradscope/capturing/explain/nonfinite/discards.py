"""Discards are results that a `where` throws away, found by how what is made of them changes with them.

Somewhere downstream of a result that does not count there is nearly always a `where`: a softmax has one, and so have
activation functions. The one that throws the result away receives what changes with it in the place of elements that
it does not take. So a change of the result is followed, element by element, at the operands of the run. It may end
without a `where`, as in a maximum or where it is multiplied by 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from gradscope.capturing.explain.nonfinite.failures import Failure
from gradscope.capturing.explain.nonfinite.replay import Replay
from gradscope.primitive_groups import ADDITIONS, COPIES, FUNCTIONS_OF_AN_ELEMENT, MULTIPLICATIONS, SLICES
from gradscope.tracing.jaxpr.frames import region, resolve
from gradscope.tracing.jaxpr.iterations import ValueAt
from gradscope.tracing.jaxpr.jaxcompat import Equation, bind
from gradscope.tracing.lookup.operations import Operation, Operations

_WHERE: Final = "select_n"
#: Make each element of one element of every operand.
_ELEMENTWISE: Final = COPIES | SLICES | ADDITIONS | MULTIPLICATIONS | FUNCTIONS_OF_AN_ELEMENT | {
    _WHERE, "abs", "clamp", "concatenate", "max", "min", "neg", "pow", "stop_gradient",
}  # fmt: skip
#: How many operations downstream are followed.
_NEAR: Final = 40


def discarding_where(
    operation: Operation, failure: Failure, operations: Operations, replayed: Callable[[Sequence[Operation]], Replay]
) -> Operation | None:
    """Returns the `where` that throws away what an operation makes; None where there is none, or it is not known.

    Args:
        operation: The operation.
        failure: The first element of its gradient that is not finite.
        operations: All operations, to find the readers of what it makes.
        replayed: Replays operations, for their operands.
    """
    changed = _change(operation, failure)
    near = [] if changed is None else _downstream(operation, operations)
    if changed is None or all(each.primitive != _WHERE for each in near):
        return None
    return _ending({operation.outputs[0]: changed}, near, replayed(near), operations)


def _change(operation: Operation, failure: Failure) -> np.ndarray | None:
    """Returns a change of the elements of a result that are made of the element which failed; None where not known."""
    result, operand = operation.equation.outvars[0].aval, failure.tensors[failure.chosen[0]]
    if len(operation.outputs) > 1 or operand.ndim not in (0, len(result.shape)):
        return None
    change = np.zeros(result.shape, result.dtype)
    if any(one not in (1, made) for one, made in zip(operand.shape, change.shape, strict=False)):
        return None
    change[tuple(at if size > 1 else slice(None) for at, size in zip(failure.index, operand.shape, strict=True))] = 1
    return change


def _downstream(operation: Operation, operations: Operations) -> list[Operation]:
    """Returns operations that make elements of those of another's result, in the order in which they run."""
    found: dict[ValueAt, Operation] = {}
    waiting = [operation.outputs[0]]
    for value in waiting:  # which grows
        for reader in operations.readers(value):
            if len(found) < _NEAR and reader.outputs[0] not in found and _follows(reader, operation):
                found[reader.outputs[0]] = reader
                waiting.append(reader.outputs[0])
    return sorted(found.values(), key=lambda each: each.layer.order)


def _follows(reader: Operation, operation: Operation) -> bool:
    """Returns whether a reader makes elements of elements, in the same iteration of the same loop."""
    together = region(reader.frame) == region(operation.frame) and reader.iteration == operation.iteration
    return together and reader.primitive in _ELEMENTWISE and _has_gradient(reader)


def _has_gradient(operation: Operation) -> bool:
    return any(jnp.issubdtype(each.aval.dtype, jnp.inexact) for each in operation.equation.outvars)


def _ending(
    changed: dict[ValueAt, np.ndarray], near: Sequence[Operation], replay: Replay, operations: Operations
) -> Operation | None:
    """Returns the first `where` at which a change ends; None where it ends without one, or goes on.

    Args:
        changed: The changes of values; receives those of what is made of them.
        near: The operations through which changes are followed, in the order in which they run.
        replay: Has their operands.
        operations: All operations.
    """
    ending: Operation | None = None
    for operation in near:
        changes = {at: changed[v] for at, v in enumerate(operation.operands) if isinstance(v, ValueAt) and v in changed}
        if not changes:
            continue
        made = _made_of(operation.equation, replay.operands(operation), changes)
        if made.any():
            changed[operation.outputs[0]] = made
        elif operation.primitive == _WHERE:
            ending = ending or operation
    return None if _goes_on(changed, near, operations) else ending


def _made_of(equation: Equation, operands: Sequence[np.ndarray], changes: Mapping[int, np.ndarray]) -> np.ndarray:
    """Returns the change of an equation's result where some of its operands change, by position."""

    def made(*values: Any) -> Any:
        replaced = dict(zip(changes, values, strict=True))
        return bind(equation, [replaced.get(at, given[at]) for at in range(len(given))])[0]

    given = [jax.device_put(each) for each in operands]
    _, change = jax.jvp(made, [given[at] for at in changes], [jax.device_put(each) for each in changes.values()])
    return np.asarray(change)


def _goes_on(changed: Mapping[ValueAt, np.ndarray], near: Sequence[Operation], operations: Operations) -> bool:
    """Returns whether a change reaches an operation through which it is not followed, or leaves a loop or the loss."""
    first = next(iter(changed)).value.frame
    around = operations.frames[region(operations.frames[first])]
    if {resolve(around, each) for each in around.jaxpr.outvars} & {value for value, _ in changed}:
        return True
    followed = {each.outputs[0] for each in near}
    readers = (reader for value in changed for reader in operations.readers(value))
    return any(reader.outputs[0] not in followed and _has_gradient(reader) for reader in readers)
