"""Lost epsilons are small numbers that keep an operand from zero, and that its type rounds to zero."""

from __future__ import annotations

from typing import Any, Final

import jax.numpy as jnp
import numpy as np

from gradscope.capturing.explain.nonfinite.causes.repairs import (
    ADD_EPSILON,
    LARGER_EPSILON,
    NORM,
    UNDER_ROOT,
    WIDER,
    Diagnosis,
)
from gradscope.primitive_groups import COPIES
from gradscope.tracing.jaxpr.iterations import ValueAt
from gradscope.tracing.lookup.operations import Operation, Operations

#: By primitive, what a constant operand of it does.
_STATED: Final = {"add": "is added", "max": "bounds it", "clamp": "bounds it"}
#: Where their results are zero, so are their operands.
_KEEP_ZERO: Final = COPIES | {"sqrt", "abs", "square", "integer_pow", "pow"}


def with_lost_epsilon(diagnosis: Diagnosis, operation: Operation, operations: Operations) -> Diagnosis:
    """Returns a diagnosis of an operand that is zero, with the constant that was to prevent it and is zero itself.

    `x / jnp.sqrt(variance + 1e-8)` has its epsilon; in float16, though, 1e-8 is 0.

    Args:
        diagnosis: What is known; returned as it is where it asks for no epsilon, or no such constant is found.
        operation: The operation that received the zero.
        operations: All operations, to find how the operand was made.
    """
    if diagnosis.repair not in (ADD_EPSILON, UNDER_ROOT, NORM):
        return diagnosis
    operand = operation.operands[-1 if operation.primitive in ("div", "rem") else 0]
    while isinstance(operand, ValueAt) and operand.value.equation >= 0:
        maker = operations.maker(operand)
        if maker.primitive in _STATED and any(_is_lost(each) for each in maker.operands):
            return _stated(diagnosis, maker)
        if maker.primitive not in _KEEP_ZERO:
            break
        operand = maker.operands[0]
    return diagnosis


def _is_lost(operand: Any) -> bool:
    """Returns whether an operand is a constant zero of a type whose smallest numbers are larger than float32's."""
    if isinstance(operand, ValueAt):
        return False
    array = np.asarray(operand)
    narrow = jnp.issubdtype(array.dtype, jnp.floating) and jnp.finfo(array.dtype).minexp > jnp.finfo(jnp.float32).minexp
    return bool(narrow) and not array.astype(np.float32).any()


def _stated(diagnosis: Diagnosis, stating: Operation) -> Diagnosis:
    dtype = stating.equation.outvars[0].aval.dtype
    why = f"{diagnosis.why}; what {_STATED[stating.primitive]}{stating.place} is 0 in {dtype}"
    smallest = float(jnp.finfo(dtype).tiny)
    return Diagnosis(why, f"{LARGER_EPSILON} (the smallest normal {dtype} is {smallest:.2g}), or {WIDER}")
