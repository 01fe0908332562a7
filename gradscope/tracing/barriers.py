"""Why no gradient arrives at a value: where every way from it to the loss is cut.

A *barrier* is an equation on a way to the loss that reverse mode does not get through: one that is constant wherever it
has a derivative (`stop_gradient`, `floor`, `sign`), one that makes integers or truth values of numbers, a choice
between branches, a `while` loop. A value without a gradient either leads to the loss through barriers alone, all of
which are told, or it does not lead to the loss at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gradscope.tracing.descent import Descent, Place, Step
from gradscope.tracing.frames import ValueKey, variable_at
from gradscope.tracing.jaxcompat import Equation, is_literal, source_of
from gradscope.tracing.reversal import is_constant, is_inexact
from gradscope.tracing.tracer import Trace

#: So many barriers are told by place; the others are counted.
_MOST_BARRIERS: Final = 4
_ARGUMENT_EXTREMES: Final = frozenset({"argmax", "argmin"})
_COMPARISONS: Final = frozenset({"gt", "ge", "lt", "le", "eq", "ne"})


class Barriers:
    """What cuts the ways of a trace's values to the loss.

    Args:
        trace: The trace.
    """

    def __init__(self, trace: Trace) -> None:
        self._root = trace.root
        self._frames = {frame.key: frame for frame in trace.root.walk()}
        self._descent = Descent()

    def cause(self, value: ValueKey) -> str:
        """Why no gradient arrives at a value, in words.

        Args:
            value: A value of inexact dtype whose gradient is absent.
        """
        frame = self._frames[value.frame]
        start = Place(frame, variable_at(frame, value))
        reached = self._descent.closure([start])
        loss = self._root.jaxpr.outvars[0]
        if is_literal(loss) or Place(self._root, loss) not in reached:
            return self._disconnected(reached, start)
        told = list(dict.fromkeys(self._barriers(reached)))
        more = f" and {len(told) - _MOST_BARRIERS} more" if len(told) > _MOST_BARRIERS else ""
        return "; ".join(told[:_MOST_BARRIERS]) + more

    def _disconnected(self, reached: dict[Place, None], start: Place) -> str:
        """What is told of a value that does not lead to the loss."""
        others = (Place(self._root, atom) for atom in self._root.jaxpr.outvars[1:] if not is_literal(atom))
        use = ", only auxiliary outputs do" if any(each in reached for each in others) else _last_use(reached, start)
        return f"disconnected: the loss does not depend on it{use}"

    def _barriers(self, reached: dict[Place, None]) -> Iterator[str]:
        """The barriers on the ways of values to the loss, in program order."""
        steps = (step for place in reached for step in self._descent.steps(place) if is_inexact(place.atom))
        cutting = {
            (step.frame.orders[step.number], words): None
            for step in steps
            if step.number in step.frame.live and (words := _words(step)) is not None
        }
        yield from (words for _, words in sorted(cutting))


def _last_use(reached: dict[Place, None], start: Place) -> str:
    made = [(place.frame, place.frame.definitions[place.atom][0]) for place in reached if place != start]
    uses = [(frame.orders[number], frame.jaxpr.eqns[number]) for frame, number in made if number >= 0]
    if not uses:
        return ", nothing uses it"
    _, equation = max(uses, key=lambda use: use[0])
    return f", its last use is {at_place(equation)}"


def _words(step: Step) -> str | None:
    """What a step that is a barrier is, and where; None for one that is not."""
    equation = step.frame.jaxpr.eqns[step.number]
    name = equation.primitive.name
    if name == "while":
        return f"while loop{_place(equation)}, which reverse mode cannot run backwards"
    if step.way != "compute":
        return None
    if name == "stop_gradient":
        return f"stop_gradient{_place(equation)}"
    if is_constant(equation):
        return f"{name}{_place(equation)}, constant wherever it has a derivative"
    if is_inexact(step.to.atom):
        return None
    if name == "convert_element_type":
        return f"integer path: converted to {step.to.atom.aval.dtype.name}{_place(equation)}"
    if name in _ARGUMENT_EXTREMES:
        return f"{name}{_place(equation)}, whose result is an index"
    kind = "compared" if name in _COMPARISONS else "made into no floating-point number"
    return f"integer path: {kind} ({name}){_place(equation)}"


def at_place(equation: Equation) -> str:
    """An equation's primitive and where in the user's code it stands."""
    return f"{equation.primitive.name}{_place(equation)}"


def _place(equation: Equation) -> str:
    source = source_of(equation)
    return "" if source is None else f" at {source}"
