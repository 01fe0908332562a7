"""The integers of a batch, and what a few operations make of them, are known without running a loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import jax.numpy as jnp
import numpy as np

from gradscope import naming
from gradscope.tracing.jaxpr.frames import OPERAND, Frame, ValueKey, resolve
from gradscope.tracing.jaxpr.jaxcompat import Atom, Equation
from gradscope.tracing.leaves import Leaf
from gradscope.tracing.lookup.constants import Constants
from gradscope.tracing.tracer import Trace

_Compute = Callable[..., np.ndarray]

#: The operands of a choice between two.
_WAYS: Final = 3


class KnownIntegers:
    """`KnownIntegers` are those of one trace.

    Args:
        trace: The trace.
        leaves: Its flat arguments; None for those that are not known.
        from_end: Whether negative indices are those that the program makes of them, counted from the end, and not as
            they are given.
    """

    def __init__(self, trace: Trace, leaves: Sequence[Any], *, from_end: bool = True) -> None:
        self._trace = trace
        self._from_end = from_end
        self._leaves = leaves
        self._frames = {frame.key: frame for frame in trace.root.walk()}
        self._constants = Constants(trace)
        self._known: dict[ValueKey, np.ndarray | None] = {}

    def inputs_behind(self, frame: Frame, atom: Atom) -> list[Leaf]:
        """Returns the arrays of the batch that a value is computed from."""
        found: dict[int, Leaf] = {}
        waiting, seen = [resolve(frame, atom)], set[ValueKey]()
        while waiting:
            value = waiting.pop()
            if value is None or value in seen:
                continue
            seen.add(value)
            if value.equation != OPERAND:
                around = self._frames[value.frame]
                waiting += (resolve(around, each) for each in around.jaxpr.eqns[value.equation].invars)
            elif not value.frame and self._trace.arguments[value.position].family == naming.INPUT:
                found[value.position] = self._trace.arguments[value.position]
        return list(found.values())

    def value(self, frame: Frame, atom: Atom) -> np.ndarray | None:
        """Returns what integers are; None where that takes more than a few operations on integers of the batch."""
        value = resolve(frame, atom)
        if value is None:
            constant = self._constants.value(frame, atom)
            return None if constant is None else np.asarray(constant)
        if value not in self._known:
            self._known[value] = self._computed(value)
        return self._known[value]

    def _computed(self, value: ValueKey) -> np.ndarray | None:
        if value.equation == OPERAND:
            leaf = None if value.frame else self._leaves[value.position]
            if leaf is None or not getattr(leaf, "is_fully_addressable", True):
                return None
            return np.asarray(leaf) if jnp.issubdtype(leaf.dtype, jnp.integer) else None
        frame = self._frames[value.frame]
        equation = frame.jaxpr.eqns[value.equation]
        if not self._from_end and (given := self._given(frame, equation)) is not None:
            return self.value(frame, given)
        compute = _COMPUTE.get(equation.primitive.name)
        if compute is None or frame.loops:
            return None
        operands = [self.value(frame, atom) for atom in equation.invars]
        known = [each for each in operands if each is not None]
        return compute(equation, *known) if len(known) == len(operands) else None

    def _given(self, frame: Frame, equation: Equation) -> Atom | None:
        """Returns the indices that an equation counts from the end where they are negative; None for another one."""
        if equation.primitive.name != "select_n" or len(equation.invars) != _WAYS:
            return None
        is_negative, given, counted = equation.invars
        index, compared = resolve(frame, given), self._operands(frame, is_negative, "lt")
        is_asked = compared[:1] == [index] and compared[1:] == [None]
        return given if index is not None and is_asked and index in self._operands(frame, counted, "add") else None

    def _operands(self, frame: Frame, atom: Atom, primitive: str) -> list[ValueKey | None]:
        """Returns the operands of the primitive that makes a value, None for a number; none where another one does."""
        value = resolve(frame, atom)
        if value is None or value.equation == OPERAND:
            return []
        around = self._frames[value.frame]
        equation = around.jaxpr.eqns[value.equation]
        return [resolve(around, each) for each in equation.invars] if equation.primitive.name == primitive else []


def _elementwise(function: Callable[..., Any]) -> _Compute:
    return lambda _equation, *operands: np.asarray(function(*operands))


def _shaped(equation: Equation, operand: np.ndarray) -> np.ndarray:
    return operand.reshape(equation.outvars[0].aval.shape)


def _counted(equation: Equation) -> np.ndarray:
    shape, axis = equation.outvars[0].aval.shape, equation.params["dimension"]
    along = [size if at == axis else 1 for at, size in enumerate(shape)]
    return np.broadcast_to(np.arange(shape[axis], dtype=equation.params["dtype"]).reshape(along), shape)


def _broadcast(equation: Equation, operand: np.ndarray) -> np.ndarray:
    shape = equation.outvars[0].aval.shape
    sizes = dict(zip(map(int, equation.params["broadcast_dimensions"]), operand.shape, strict=True))
    return np.broadcast_to(operand.reshape([sizes.get(axis, 1) for axis in range(len(shape))]), shape)


def _sliced(equation: Equation, operand: np.ndarray) -> np.ndarray:
    bounds = (equation.params[name] for name in ("start_indices", "limit_indices"))
    steps = equation.params["strides"] or [1] * operand.ndim
    return operand[tuple(slice(*each) for each in zip(*bounds, steps, strict=True))]


#: What indices are computed by, on the host.
_COMPUTE: Final[Mapping[str, _Compute]] = {
    "add": _elementwise(np.add),
    "sub": _elementwise(np.subtract),
    "mul": _elementwise(np.multiply),
    "max": _elementwise(np.maximum),
    "min": _elementwise(np.minimum),
    "lt": _elementwise(np.less),
    "ge": _elementwise(np.greater_equal),
    "eq": _elementwise(np.equal),
    "ne": _elementwise(np.not_equal),
    "clamp": _elementwise(lambda low, operand, high: np.clip(operand, low, high)),
    "select_n": _elementwise(lambda which, *cases: np.select([which == at for at in range(len(cases))], cases)),
    "convert_element_type": lambda equation, operand: operand.astype(equation.params["new_dtype"]),
    "iota": _counted,
    "broadcast_in_dim": _broadcast,
    "reshape": _shaped,
    "squeeze": _shaped,
    "expand_dims": _shaped,
    "transpose": lambda equation, operand: operand.transpose(equation.params["permutation"]),
    "slice": _sliced,
    "concatenate": lambda equation, *operands: np.concatenate(operands, axis=equation.params["dimension"]),
    "copy": lambda _equation, operand: operand,
}
