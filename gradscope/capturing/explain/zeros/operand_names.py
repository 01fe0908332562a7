"""Names of operands: the argument or the constant that an operand is, whatever its shape and type."""

from __future__ import annotations

from typing import Final

from gradscope import naming
from gradscope.tracing.dataflow.forward import FrameVariable
from gradscope.tracing.jaxpr.frames import OPERAND, resolve
from gradscope.tracing.jaxpr.jaxcompat import is_literal
from gradscope.tracing.tracer import Trace

#: The name of an operand that the program states.
CONSTANT: Final = "a constant"

#: Return their operand's value in another shape or type.
_SAME_VALUE: Final = frozenset(
    {"broadcast_in_dim", "reshape", "squeeze", "expand_dims", "transpose", "copy", "convert_element_type", "pvary",
     "pcast", "neg"}
)  # fmt: skip


class OperandNames:
    """`OperandNames` are those of a trace.

    Args:
        trace: The trace.
    """

    def __init__(self, trace: Trace) -> None:
        self._arguments = trace.arguments
        self._frames = {frame.key: frame for frame in trace.root.walk()}

    def of(self, variable: FrameVariable) -> str:
        """Returns what an operand is: an argument's name, `axis_index` or `CONSTANT`; "" for anything else."""
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
