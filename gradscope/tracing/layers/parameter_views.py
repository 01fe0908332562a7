"""Parameter views are the values of a trace that are parameters, converted or sliced.

A parameter keeps its name through the primitives that only view or convert it, and into the frames that receive it (a
scan's slice of a stacked parameter is still that parameter), so that a layer that computes in bfloat16 is still known
to use its float32 kernel.
"""

from __future__ import annotations

from collections.abc import Mapping

from gradscope.primitive_groups import COPIES, SLICES
from gradscope.tracing.jaxpr.frames import OPERAND, Frame, operands
from gradscope.tracing.jaxpr.jaxcompat import Atom, is_literal


class ParameterOrigins:
    """`ParameterOrigins` maps atoms to the names of the parameters that they are views of.

    Args:
        names: Parameter name by position among the root's inputs.
    """

    def __init__(self, names: Mapping[int, str]) -> None:
        self._names = names
        self._known: dict[tuple[int, Atom], str | None] = {}
        self._sizes: dict[str | None, int] = {}

    def names(self, frame: Frame, atom: Atom) -> tuple[str, ...]:
        """Returns the parameter behind an atom of `frame`, as a tuple of one name; empty for any other value."""
        name = self._name(frame, atom)
        return () if name is None else (name,)

    def size(self, frame: Frame, atom: Atom) -> int:
        """Returns the number of elements of the whole parameter that an atom is a view of; 0 for any other value."""
        return self._sizes.get(self._name(frame, atom), 0)

    def _name(self, frame: Frame, atom: Atom) -> str | None:
        if is_literal(atom) or atom not in frame.definitions:
            return None
        key = (id(frame), atom)
        if key not in self._known:
            self._known[key] = self._found(frame, atom)
        return self._known[key]

    def _found(self, frame: Frame, atom: Atom) -> str | None:
        number, position = frame.definitions[atom]
        if number != OPERAND:
            return self._made(frame, number, position)
        if frame.parent is None:
            name = self._names.get(position)
            self._sizes[name] = atom.aval.size
            return name
        outer = operands(frame)[position]
        return None if outer is None or frame.transfer.is_carry(position) else self._name(frame.parent, outer)

    def _made(self, frame: Frame, number: int, position: int) -> str | None:
        equation = frame.jaxpr.eqns[number]
        if equation.primitive.name in COPIES | SLICES | {"rev"}:
            return self._name(frame, equation.invars[0])
        for child in frame.children.get(number, ()):
            if child.transfer.in_place:
                return self._name(child, child.jaxpr.outvars[position])
        return None
