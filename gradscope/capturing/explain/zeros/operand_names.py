"""An operand's name is that of the argument or the constant that it is, whatever its shape and type.

An operand of zeros has the name of the argument that makes it so, such as the kernel of a layer that returns zeros, or
a mask of the batch.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np

from gradscope import naming
from gradscope.capturing.explain.zeros.neighbourhood import Neighbourhood
from gradscope.dump.manifest.zero_reasons import PRODUCT_OF
from gradscope.naming import IterationIndex
from gradscope.primitive_groups import ADDITIONS, COPIES, MATRIX_PRODUCTS, MULTIPLICATIONS, SLICES
from gradscope.tracing.dataflow.forward import FrameVariable
from gradscope.tracing.dataflow.reachability import is_inexact
from gradscope.tracing.jaxpr.frames import OPERAND, ValueKey, resolve
from gradscope.tracing.jaxpr.jaxcompat import is_literal
from gradscope.tracing.tracer import Trace

#: The name of an operand that the program states.
CONSTANT: Final = "a constant"

#: Return their operand's value in another shape or type, or its negative.
_SAME_VALUE: Final = COPIES | {"neg"}
#: Zero where all operands are.
_SUMS: Final = ADDITIONS | {"concatenate"}
#: Functions of an element that are zero at zero.
_ZERO_AT_ZERO: Final = frozenset(
    {"abs", "asinh", "atan", "cbrt", "erf", "expm1", "integer_pow", "log1p", "sign", "sin", "sinh", "sqrt", "square",
     "tan", "tanh"}
)  # fmt: skip
#: Zero where the first operand is.
_FIRST: Final = _SAME_VALUE | SLICES | _ZERO_AT_ZERO | {"split", "reduce_sum", "rev", "gather"}
#: Number of axes and name of an argument of zeros; None where there is none.
_Zeros: TypeAlias = tuple[int, str] | None
#: How many operations upstream are looked at for an argument of zeros.
_NEAR: Final = 24


class OperandNames:
    """`OperandNames` are those of a trace.

    Args:
        trace: The trace.
        values: Values of operands, and of the arguments.
    """

    def __init__(self, trace: Trace, values: Neighbourhood) -> None:
        self._values = values
        self._arguments = trace.arguments
        self._frames = {frame.key: frame for frame in trace.root.walk()}

    def of(self, variable: FrameVariable, iteration: IterationIndex) -> str:
        """Returns what an operand is: an argument's name, `axis_index` or `CONSTANT`; "" for anything else.

        Of zeros, it is the argument of zeros because of which they are: `param/w` where they are a multiple of it,
        element by element, and `the product of param/w` where they are one with a matrix.

        Args:
            variable: The operand.
            iteration: The iteration of the loops around its frame.
        """
        name = self._stated(variable)
        if name or not is_inexact(variable.atom) or np.any(self._values.value(variable, iteration)):
            return name
        found = self._zeros(variable, {}, _NEAR)
        return "" if found is None else found[1]

    def _stated(self, variable: FrameVariable) -> str:
        frame, atom = variable
        while not is_literal(atom) and (key := resolve(frame, atom)) is not None:
            if not key.frame and key.equation == OPERAND:
                leaf = self._arguments[key.position]
                return naming.key_of(leaf.family, leaf.name)
            if key.equation == OPERAND:
                return ""
            frame = self._frames[key.frame]
            equation = frame.jaxpr.eqns[key.equation]
            if equation.primitive.name == "axis_index":
                return "axis_index"
            if equation.primitive.name not in _SAME_VALUE:
                return ""
            atom = equation.invars[0]
        return CONSTANT

    def _zeros(self, variable: FrameVariable, known: dict[ValueKey, _Zeros], near: int) -> _Zeros:
        """Returns the number of axes and the name of the argument of zeros; None where there is none nearby."""
        key = None if is_literal(variable.atom) else resolve(*variable)
        if key is None or not near:
            return None
        if key not in known:
            known[key] = None
            if key.equation != OPERAND:
                known[key] = self._of_result(key, known, near - 1)
            elif (stacked := self._stacked(key)) is not None:
                known[key] = self._zeros(stacked, known, near)
            else:
                known[key] = self._of_argument(key, variable)
        return known[key]

    def _stacked(self, key: ValueKey) -> FrameVariable | None:
        """Returns what a loop hands to its iterations slice by slice; None for other values of a frame."""
        frame = self._frames[key.frame]
        entry = frame.transfer.inputs[key.position]
        if entry is None or entry.how != "slice" or frame.parent is None or frame.equation is None:
            return None
        return FrameVariable(frame.parent, frame.equation.invars[entry.operand])

    def _of_argument(self, key: ValueKey, variable: FrameVariable) -> _Zeros:
        leaf = None if key.frame else self._arguments[key.position]
        is_argument = leaf is not None and leaf.family in (naming.PARAM, naming.INPUT)
        if leaf is None or not is_argument or np.any(array := self._values.value(variable, ())):
            return None
        return np.ndim(array), naming.key_of(leaf.family, leaf.name)

    def _of_result(self, key: ValueKey, known: dict[ValueKey, _Zeros], near: int) -> _Zeros:
        frame = self._frames[key.frame]
        equation = frame.jaxpr.eqns[key.equation]
        name = equation.primitive.name
        found = (self._zeros(FrameVariable(frame, atom), known, near) for atom in equation.invars)
        if name in _FIRST:
            return next(found)
        if name in MULTIPLICATIONS:
            return next(filter(None, found), None)
        if name in MATRIX_PRODUCTS:
            return next(map(_as_product, filter(None, found)), None)
        # Of a kernel and a bias, both zero, it is the kernel.
        return max(filter(None, every)) if name in _SUMS and None not in (every := list(found)) else None


def _as_product(zeros: tuple[int, str]) -> tuple[int, str]:
    axes, name = zeros
    return axes, name if name.startswith(PRODUCT_OF) else f"{PRODUCT_OF}{name}"
