"""Constants are the values in a trace that are no argument and no operation's output, literals included."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from gradscope.tracing.jaxpr.frames import OPERAND, Frame, resolve, unchanged_operand
from gradscope.tracing.jaxpr.jaxcompat import Atom, is_literal, sub_jaxprs
from gradscope.tracing.tracer import Trace

#: What makes of a number the same one, in another type or spread to a shape.
_SAME_NUMBER: Final = frozenset({"convert_element_type", "broadcast_in_dim", "copy"})


class Constants:
    """`Constants` returns the values of the constants of a trace.

    Args:
        trace: The trace.
    """

    def __init__(self, trace: Trace) -> None:
        # What watches the step of a loop keeps the trace without its constants, which are then not known.
        self._values = dict(zip(trace.jaxpr.constvars, trace.constants, strict=False))
        self._frames = {frame.key: frame for frame in trace.root.walk()}
        for frame in self._frames.values():
            if frame.equation is not None:
                inside = sub_jaxprs(frame.equation)[frame.key[-1][1]]
                # An opaque primitive may keep an open jaxpr, as lineax does, whose constants are among its operands.
                if inside.constants:
                    self._values |= zip(inside.jaxpr.constvars, inside.constants, strict=True)

    def value(self, frame: Frame, atom: Atom) -> Any:
        """Returns the array of an atom for which `frames.resolve` returns None; None where it is not known.

        Args:
            frame: The frame that it is in, which may have received it from those around.
            atom: The atom.
        """
        if is_literal(atom):
            return atom.val
        if atom in self._values or frame.parent is None or atom not in frame.definitions:
            return self._values.get(atom)
        outer = unchanged_operand(frame, frame.definitions[atom][1])
        return None if outer is None else self.value(frame.parent, outer)

    def number(self, frame: Frame, atom: Atom) -> float | None:
        """Returns the number that an atom is, or that is spread to its shape; None for what is computed.

        Args:
            frame: The frame that it is in.
            atom: The atom.
        """
        value = resolve(frame, atom)
        if value is None:
            constant = self.value(frame, atom)
            is_number = constant is not None and np.size(constant) == 1 and np.isrealobj(constant)
            return float(np.asarray(constant).item()) if is_number else None
        if value.equation == OPERAND:
            return None
        maker = self._frames[value.frame]
        equation = maker.jaxpr.eqns[value.equation]
        return self.number(maker, equation.invars[0]) if equation.primitive.name in _SAME_NUMBER else None
