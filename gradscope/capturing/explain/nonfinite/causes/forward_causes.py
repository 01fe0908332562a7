"""Forward causes are the known ways in which an operation makes a result that is not finite of finite operands."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import jax.numpy as jnp
import numpy as np

from gradscope.capturing.explain.nonfinite.causes.lost_epsilons import with_lost_epsilon
from gradscope.capturing.explain.nonfinite.causes.repairs import (
    ADD_EPSILON,
    BASE_POSITIVE,
    CLIP_INSIDE,
    CLIP_NEGATIVE,
    CLIP_OVERFLOW,
    FINITE_MASK,
    JITTER,
    LEAVE_POLE,
    MASK_FIRST,
    REGULAR,
    SHIFT,
    VALID_INDEX,
    Diagnosis,
    element,
    in_narrow_dtype,
    is_large,
    numbers,
    overflow,
)
from gradscope.capturing.explain.nonfinite.causes.repairs_of_patterns import repair_of_pattern
from gradscope.capturing.explain.nonfinite.failures import Failure
from gradscope.primitive_groups import LOGARITHMS
from gradscope.tracing.jaxpr.iterations import ValueAt
from gradscope.tracing.lookup.operations import Operation, Operations


def forward_diagnosis(operation: Operation, failure: Failure | None, operations: Operations) -> Diagnosis:
    """Returns what made a result that is not finite, as a clause, and its repair.

    Args:
        operation: The operation that computed it.
        failure: Its first such element; None where there is none when the operation runs again by itself.
        operations: All operations, to find how its operands were made.
    """
    if failure is None:
        return Diagnosis("in an iteration that is not observed")
    place = element(failure.index)
    if failure.iteration is not None:
        # The names of the dump's values have the number of that one.
        place += f", in iteration {failure.iteration} of the {operation.primitive}, of which the dump has the last"
    primitive = failure.equation.primitive.name
    return _known(operation, primitive, failure, operations, place) or _unknown(primitive, failure, place)


def diagnosis_by_operands(failure: Failure) -> Diagnosis:
    """Returns what made a result that is not finite, as far as the operands at its element tell."""
    primitive = failure.equation.primitive.name
    rule = _FORWARD.get(primitive)
    found = rule(failure.operands) if rule is not None and failure.operands else None
    return found or _unknown(primitive, failure, "")


def _known(
    operation: Operation, primitive: str, failure: Failure, operations: Operations, place: str
) -> Diagnosis | None:
    """Returns the diagnosis of a known cause; None where there is none."""
    if primitive == "gather":
        return _gather(failure, place)
    if _is_row_masked(operation, primitive, failure, operations):
        return Diagnosis(f"every entry of the row is masked with -inf{place}", FINITE_MASK)
    rule = _FORWARD.get(primitive)
    found = rule(failure.operands) if rule is not None and failure.operands else None
    if found is not None:
        found = in_narrow_dtype(found, failure.dtype) if primitive in _EXPONENTIALS else found
        repair = repair_of_pattern(operation, primitive, operations) or found.repair
        return with_lost_epsilon(Diagnosis(f"{found.why}{place}", repair), operation, operations)
    if primitive == "triangular_solve" and (at := _zero_on_diagonal(failure.tensors[0])) is not None:
        return Diagnosis(f"a singular matrix is inverted: its factor has a 0 on the diagonal{element(at)}", REGULAR)
    if primitive == "reduce_sum" and math.isnan(failure.value) and np.isinf(_wide(failure.tensors[0])).any():
        return Diagnosis(f"infinity minus infinity in a sum{place}")
    return None


def _unknown(primitive: str, failure: Failure, place: str) -> Diagnosis:
    """Returns the diagnosis of an overflow, or else what the operation is and what it received."""
    if all(np.all(np.isfinite(_wide(each))) for each in failure.tensors) and _may_overflow(failure):
        if not is_large(failure.operands or failure.tensors):
            return Diagnosis(f"{primitive}{_of(failure)} is not finite{place}")
        over = overflow(failure.dtype, backward=False)
        return Diagnosis(f"{over.why} in {primitive}{_of(failure)}{place}", over.repair)
    return Diagnosis(f"{primitive}{_of(failure)}{place}", JITTER if primitive == "cholesky" else "")


def is_mask(operand: Any) -> bool:
    """Returns whether a constant operand has an infinity, which the program then states on purpose."""
    array = np.asarray(operand)
    return bool(jnp.issubdtype(array.dtype, jnp.inexact) and np.isinf(_wide(array)).any())


def _may_overflow(failure: Failure) -> bool:
    """Returns whether a failure may be an overflow: to an infinity, or to NaN in a type that has no infinity."""
    return math.isinf(failure.value) or math.isnan(float(np.asarray(np.inf).astype(failure.dtype)))


def _of(failure: Failure) -> str:
    return f" of {numbers(failure.operands)}" if failure.operands else ""


def _wide(array: Any) -> np.ndarray:
    host = np.asarray(array)
    return host if host.dtype.kind in "fciub" else host.astype(np.float32)


def _gather(failure: Failure, place: str) -> Diagnosis:
    """Returns the diagnosis of a gather that fills with NaN what is beyond its operand."""
    operand, indices = failure.tensors[:2]
    collapsed = failure.equation.params["dimension_numbers"].start_index_map
    sizes = np.array([operand.shape[axis] for axis in collapsed])
    beyond = (indices < 0) | (indices >= sizes)
    if not beyond.any():
        return Diagnosis(f"gather{place}")
    at = [int(each) for each in np.argwhere(beyond)[0]]
    where = f" (element {at[:-1]} of the indices)" if len(at) > 1 else ""
    rows, index = int(sizes[at[-1]]), int(indices[tuple(at)])
    # JAX counts a negative index from the end by adding the number of rows, before it looks up.
    stated = f"{index - rows}, or {index} from the first," if index < 0 else str(index)
    return Diagnosis(
        f"index {stated}{where} is beyond the {rows} rows of the table, and gather fills with NaN", VALID_INDEX
    )


def _is_row_masked(operation: Operation, primitive: str, failure: Failure, operations: Operations) -> bool:
    """Returns whether a softmax's or a logsumexp's operand is -inf throughout."""
    if primitive == "sub":
        both = len(failure.operands) == 2 and all(each == -math.inf for each in failure.operands)
        return both and any(operations.made_by(operation.values[-1:], each) for each in ("max", "reduce_max"))
    if primitive not in LOGARITHMS | {"div"} or not failure.operands or failure.operands[-1] != 0:
        return False
    summed = operations.made_by(operation.values[-1:], "reduce_sum")
    return any(
        0 in _terms(exponential) or _reads_mask(exponential, operations)
        for exponential in operations.made_by([value for each in summed for value in each.values], "exp")
    )


def _zero_on_diagonal(matrix: np.ndarray) -> tuple[int, ...] | None:
    """Returns the place of the first zero on the diagonal of a matrix, or of one of a batch; None for none."""
    zeros = np.argwhere(np.diagonal(_wide(matrix), axis1=-2, axis2=-1) == 0)
    return (*map(int, zeros[0]), int(zeros[0][-1])) if len(zeros) else None


def _terms(exponential: Operation) -> Sequence[Any]:
    return [each for each in exponential.operands if not isinstance(each, ValueAt)]


def _reads_mask(operation: Operation, operations: Operations) -> bool:
    """Returns whether an operation's operand was made by a few operations of which one reads a constant infinity."""
    waiting, seen = list(operation.values), 0
    while waiting and seen < _NEAR:
        value = waiting.pop(0)
        seen += 1
        if value.value.equation >= 0:
            maker = operations.maker(value)
            if any(is_mask(each) for each in maker.operands if not isinstance(each, ValueAt)):
                return True
            waiting += maker.values
    return False


#: How many operations are looked at to find the constant that masks.
_NEAR: Final = 12


def _below_zero(name: str) -> Callable[[Sequence[float]], Diagnosis | None]:
    def rule(operands: Sequence[float]) -> Diagnosis | None:
        if operands[0] == 0:
            return Diagnosis(f"{name} of 0", ADD_EPSILON)
        if operands[0] < 0:
            return Diagnosis(f"{name} of {operands[0]:.6g}, which is negative", CLIP_NEGATIVE)
        return None

    return rule


def _outside(name: str, inside: Callable[[float], bool]) -> Callable[[Sequence[float]], Diagnosis | None]:
    def rule(operands: Sequence[float]) -> Diagnosis | None:
        if not math.isfinite(operands[0]) or inside(operands[0]):
            return None
        return Diagnosis(f"{name} of {operands[0]:.9g}, where it is not finite", CLIP_INSIDE)

    return rule


def _exponential(name: str, repair: str) -> Callable[[Sequence[float]], Diagnosis | None]:
    def rule(operands: Sequence[float]) -> Diagnosis | None:
        # A compiled program may multiply and subtract in one step, whose result no operand shows: `z * 1e30 - max` need
        # not be 0 then where `z * 1e30` is the maximum.
        if not math.isfinite(operands[0]) or abs(operands[0]) < _LEAST_EXPONENT:
            return None
        return Diagnosis(f"{name} of {operands[0]:.6g} overflows", repair)

    return rule


def _div(operands: Sequence[float]) -> Diagnosis | None:
    if operands[-1] == 0:
        return Diagnosis(f"{operands[0]:.6g} divided by 0", ADD_EPSILON)
    if all(map(math.isinf, operands)):
        return Diagnosis("infinity divided by infinity")
    return None


def _mul(operands: Sequence[float]) -> Diagnosis | None:
    if 0 in operands and any(map(math.isinf, operands)):
        return Diagnosis("0 times infinity", MASK_FIRST)
    return None


def _sum(operands: Sequence[float]) -> Diagnosis | None:
    if len(operands) == 2 and all(map(math.isinf, operands)):
        return Diagnosis("infinity minus infinity")
    return None


def _pow(operands: Sequence[float]) -> Diagnosis | None:
    if operands[0] < 0:
        return Diagnosis(f"{operands[0]:.6g} to a power that is no integer", BASE_POSITIVE)
    if operands[0] == 0:
        return Diagnosis("0 to a negative power", ADD_EPSILON)
    return None


def _integer_pow(operands: Sequence[float]) -> Diagnosis | None:
    return Diagnosis("0 to a negative power", ADD_EPSILON) if operands[0] == 0 else None


def _at_pole(name: str) -> Callable[[Sequence[float]], Diagnosis | None]:
    def rule(operands: Sequence[float]) -> Diagnosis | None:
        if operands[0] <= 0 and operands[0] == round(operands[0]):
            return Diagnosis(f"{name} of {operands[0]:.6g}, where it has a pole", LEAVE_POLE)
        return None

    return rule


def _rem(operands: Sequence[float]) -> Diagnosis | None:
    return Diagnosis(f"remainder of {operands[0]:.6g} by 0", ADD_EPSILON) if operands[-1] == 0 else None


def _log1p(operands: Sequence[float]) -> Diagnosis | None:
    if operands[0] == -1:
        return Diagnosis("log1p of -1", ADD_EPSILON)
    return Diagnosis(f"log1p of {operands[0]:.6g}, which is below -1", CLIP_NEGATIVE) if operands[0] < -1 else None


#: The magnitude below which an exponential overflows in no type.
_LEAST_EXPONENT: Final = 1.0

#: The primitives whose result overflows where their operand is large.
_EXPONENTIALS: Final = frozenset({"exp", "exp2", "expm1", "sinh", "cosh"})

#: By primitive, the cause that follows from its operands' values at the element.
_FORWARD: Final[Mapping[str, Callable[[Sequence[float]], Diagnosis | None]]] = {
    "log": _below_zero("log"),
    "log1p": _log1p,
    "log2": _below_zero("log2"),
    "sqrt": _below_zero("square root"),
    "rsqrt": _below_zero("rsqrt"),
    "div": _div,
    "exp": _exponential("exp", SHIFT),
    "exp2": _exponential("exp2", SHIFT),
    "expm1": _exponential("expm1", SHIFT),
    "sinh": _exponential("sinh", CLIP_OVERFLOW),
    "cosh": _exponential("cosh", CLIP_OVERFLOW),
    "acos": _outside("arccos", lambda x: abs(x) <= 1),
    "asin": _outside("arcsin", lambda x: abs(x) <= 1),
    "atanh": _outside("arctanh", lambda x: abs(x) < 1),
    "acosh": _outside("arccosh", lambda x: x >= 1),
    "erf_inv": _outside("erf_inv", lambda x: abs(x) < 1),
    "mul": _mul,
    "add": _sum,
    "sub": _sum,
    "pow": _pow,
    "integer_pow": _integer_pow,
    "lgamma": _at_pole("lgamma"),
    "digamma": _at_pole("digamma"),
    "rem": _rem,
}
