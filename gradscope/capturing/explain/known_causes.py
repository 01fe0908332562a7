"""Known causes of a NaN or an infinity: what went wrong in the operation where it began, and how to repair it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import jax.numpy as jnp

from gradscope.capturing.explain.replay import Failure
from gradscope.dump.manifest.manifest import Origin
from gradscope.tracing.lookup.operations import Operation, Operations


class _Cause(NamedTuple):
    """A `_Cause` states what happened, and the repair."""

    why: str
    repair: str = ""


_CLAMP: Final = "keep the operand away from there: add a small epsilon, or clip it"
_SHIFT: Final = "subtract the largest operand first, as jax.nn.softmax and jax.nn.logsumexp do, or clip the operand"
_DOUBLE_WHERE: Final = (
    "use where twice: give the operation a harmless operand, f(where(ok, x, 1)), where its result is thrown away"
)
_NORM: Final = "take the norm of a vector that cannot be zero: sqrt(sum(x**2) + eps), or where(x2 > 0, x2, 1) inside it"
_RANGE: Final = "compute this in float32, or scale the loss or the operands down"


def explain_forward(operation: Operation, failure: Failure | None) -> Origin:
    """Returns the origin of a result that is not finite.

    Args:
        operation: The operation that computed it.
        failure: Its first such element; None where there is none when the operation runs again by itself.

    Returns:
        The origin, with cause and repair.
    """
    if failure is None:
        return _origin("forward", operation, None, _Cause("made a value that is not finite in one of its iterations"))
    kind = "NaN" if math.isnan(failure.value) else "Inf"
    cause = _forward_cause(operation.primitive, failure)
    return _origin("forward", operation, failure, _Cause(f"made the first {kind}: {cause.why}", cause.repair))


def explain_backward(operation: Operation, failure: Failure, operations: Operations) -> Origin:
    """Returns the origin of a gradient that is not finite although the loss is.

    Args:
        operation: The operation whose backward rule returned it.
        failure: Its first such element.
        operations: All operations, to find the readers of the result.

    Returns:
        The origin, with cause and repair.
    """
    kind = "NaN" if math.isnan(failure.value) else "Inf"
    selects = [reader for output in operation.outputs for reader in operations.readers(output)
              if reader.primitive == "select_n"]  # fmt: skip
    cause = _backward_cause(operation, failure, operations)
    why = f"sent back the first {kind}: {cause.why}"
    if selects and failure.received == 0:
        where = f" at {source}" if (source := selects[0].layer.source) else ""
        why += f"; its result is thrown away by the where{where}, its gradient is not: 0 times infinity is NaN"
        return _origin("backward", operation, failure, _Cause(why, _DOUBLE_WHERE))
    return _origin("backward", operation, failure, _Cause(why, cause.repair))


def _origin(direction: str, operation: Operation, failure: Failure | None, cause: _Cause) -> Origin:
    return Origin(
        direction="forward" if direction == "forward" else "backward",
        name=operation.name,
        why=cause.why,
        repair=cause.repair,
        primitive=operation.primitive,
        source=operation.layer.source,
        iteration=operation.iteration,
        index=() if failure is None else failure.index,
        operands=() if failure is None else failure.operands,
    )


def _forward_cause(primitive: str, failure: Failure) -> _Cause:
    element = _element(failure)
    if primitive in ("while", "scan", "cond"):
        return _Cause(f"it did so inside the {primitive}, in an iteration that is not observed{element}")
    rule = _FORWARD.get(primitive)
    found = rule(failure.operands) if rule is not None and failure.operands else None
    if found is not None:
        return _Cause(f"{found.why}{element}", found.repair)
    finite = all(map(math.isfinite, failure.operands))
    if math.isinf(failure.value) and finite:
        largest = float(jnp.finfo(failure.dtype).max)
        return _Cause(f"the result{element} is beyond {largest:.4g}, the largest {failure.dtype}", _RANGE)
    return _Cause(
        f"{primitive} of {_numbers(failure.operands)}{element}" if failure.operands else f"{primitive}{element}"
    )


def _backward_cause(operation: Operation, failure: Failure, operations: Operations) -> _Cause:
    element = _element(failure)
    first = failure.operands[0] if failure.operands else math.nan
    primitive = operation.primitive
    if primitive == "sqrt" and first == 0:
        if _of_squares(operation, operations):
            return _Cause(f"the derivative of a norm at 0{element} is not finite", _NORM)
        return _Cause(f"the derivative of sqrt at 0{element} is infinite", _CLAMP)
    if primitive.startswith("custom_vjp"):
        return _Cause(f"its own backward rule, a custom_vjp, made it of a gradient that is finite{element}")
    if primitive in _SINGULAR_AT_ZERO and 0 in failure.operands:
        return _Cause(f"the derivative of {primitive} at {_numbers(failure.operands)}{element} is not finite", _CLAMP)
    if math.isinf(failure.value):
        largest = float(jnp.finfo(failure.dtype).max)
        return _Cause(f"the gradient{element} is beyond {largest:.4g}, the largest {failure.dtype}", _RANGE)
    operands = f" at {_numbers(failure.operands)}" if failure.operands else ""
    return _Cause(f"the derivative of {primitive}{operands}{element} is not finite", _CLAMP if operands else "")


def _of_squares(operation: Operation, operations: Operations) -> bool:
    """Returns whether an operation reads a sum of squares."""
    squares = {"square", "integer_pow", "mul", "abs"}
    for summed in (operations.maker(value) for value in operation.values if value.value.equation >= 0):
        if summed.primitive == "reduce_sum":
            makers = (operations.maker(value) for value in summed.values if value.value.equation >= 0)
            return any(maker.primitive in squares for maker in makers)
    return False


def _element(failure: Failure) -> str:
    return f" (element {list(failure.index)})" if failure.index else ""


def _numbers(operands: Sequence[float]) -> str:
    return " and ".join(f"{operand:.6g}" for operand in operands)


_SINGULAR_AT_ZERO: Final = frozenset(
    {"log", "rsqrt", "div", "pow", "cbrt", "integer_pow", "atan2", "sqrt", "log1p", "rem"}
)


def _log(operands: Sequence[float]) -> _Cause:
    what = "0" if operands[0] == 0 else f"{operands[0]:.6g}, which is negative"
    return _Cause(f"log of {what}", _CLAMP)


def _root(operands: Sequence[float]) -> _Cause:
    what = "0" if operands[0] == 0 else f"{operands[0]:.6g}, which is negative"
    return _Cause(f"square root of {what}", _CLAMP)


def _div(operands: Sequence[float]) -> _Cause | None:
    if operands[-1] == 0:
        return _Cause(f"{operands[0]:.6g} divided by 0", _CLAMP)
    return None


def _exp(operands: Sequence[float]) -> _Cause | None:
    if operands[0] > 0 and math.isfinite(operands[0]):
        return _Cause(f"exp of {operands[0]:.6g} overflows", _SHIFT)
    return None


def _mul(operands: Sequence[float]) -> _Cause | None:
    if 0 in operands and any(map(math.isinf, operands)):
        return _Cause("0 times infinity", "mask with where, before the infinity is made, and not by multiplying")
    return None


def _sum(operands: Sequence[float]) -> _Cause | None:
    if len(operands) == 2 and all(map(math.isinf, operands)):
        return _Cause("infinity minus infinity", "find what made the infinities: a row that is masked throughout, say")
    return None


def _pow(operands: Sequence[float]) -> _Cause | None:
    if operands[0] < 0:
        return _Cause(f"{operands[0]:.6g} to a power that is no integer", _CLAMP)
    return None


#: By primitive, the cause that follows from its operands' values at the element.
_FORWARD: Final[Mapping[str, Callable[[Sequence[float]], _Cause | None]]] = {
    "log": _log,
    "sqrt": _root,
    "rsqrt": _root,
    "div": _div,
    "exp": _exp,
    "exp2": _exp,
    "mul": _mul,
    "add": _sum,
    "sub": _sum,
    "pow": _pow,
}
