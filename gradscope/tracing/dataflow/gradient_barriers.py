"""Gradient barriers are the equations that cut every path from a value to the loss, so that it has no gradient.

A *barrier* is an equation on a path to the loss that reverse mode does not pass: one that is constant wherever it has a
derivative (`stop_gradient`, `floor`, `sign`), one that makes integers or booleans of numbers, a choice between
branches, or a `while` loop. A value without a gradient either leads to the loss only through barriers, which are
reported, or it does not lead to the loss at all. Of those behind others, the ones count that cut every path once more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from gradscope.dump.record import AS_DATA, STOPPED, Reason
from gradscope.primitive_groups import COPIES, SLICES
from gradscope.tracing.dataflow.forward import ForwardFlow, FrameVariable, Step
from gradscope.tracing.dataflow.liveness import Liveness
from gradscope.tracing.dataflow.reachability import is_constant, is_inexact, is_without_derivative
from gradscope.tracing.dataflow.stopped_data import StoppedData
from gradscope.tracing.jaxpr.derivatives.custom_rules import custom_rule, may_refuse
from gradscope.tracing.jaxpr.frames import OPERAND, Frame, ValueKey, source_in, variable_of
from gradscope.tracing.jaxpr.jaxcompat import is_literal
from gradscope.tracing.jaxpr.source_lines import library_function

#: The number of barriers that are reported with their locations; the others are counted.
_MOST_BARRIERS: Final = 4

#: Descriptions of the primitives that make integers or booleans of numbers.
_INTEGER_PATHS: Final = {
    "convert_element_type": "an integer path: a conversion",
    **dict.fromkeys(("argmax", "argmin"), "an integer path: an index"),
    **dict.fromkeys(("gt", "ge", "lt", "le", "eq", "ne", "is_finite"), "an integer path: a comparison"),
}

#: What a solver with implicit derivatives does to a value that enters its search, and to one that leaves it.
_SOLVER: Final = {
    "enter": "which takes no gradient of its initial guess, nor of how it is solved",
    "leave": "a solver whose derivative is another solve and does not depend on it",
}


class Barriers:
    """`Barriers` finds the equations that cut the paths of a trace's values to the loss.

    Args:
        root: Its root frame.
        liveness: What the loss depends on.
        constants: Variables without a gradient: they are constant, and a derivative rule may notice.
        data: States what counts as data behind a `stop_gradient`; None where that is not requested.
    """

    def __init__(
        self,
        root: Frame,
        liveness: Liveness,
        constants: Collection[FrameVariable] = (),
        data: StoppedData | None = None,
    ) -> None:
        self._root = root
        self._data = data
        self._constants = constants
        self._liveness = liveness
        self._frames = {frame.key: frame for frame in root.walk()}
        self._known: dict[tuple[ValueKey, Reason], str] = {}
        self._flow = ForwardFlow()

    def detail(self, value: ValueKey, absent: Reason) -> str:
        """Returns why a value has no gradient, with the location; "" where the reason is a full explanation.

        Args:
            value: A value of inexact dtype.
            absent: The reason why its gradient is absent.
        """
        if absent not in ("disconnected", "forward-only", *_BY_FRAME):
            return ""
        if (value, absent) not in self._known:
            self._known[value, absent] = self._detail(self._frames[value.frame], value, absent)
        return self._known[value, absent]

    def _detail(self, frame: Frame, value: ValueKey, absent: Reason) -> str:
        if absent in _BY_FRAME:
            return _BY_FRAME[absent](frame)
        variable = FrameVariable(frame, variable_of(frame, value))
        return self._constant(variable) if variable in self._constants else self.between(variable)

    def _constant(self, start: FrameVariable) -> str:
        """Returns the derivative rule that may notice that a value is constant."""
        steps = (step for variable in self._flow.closure([start]) for step in self._flow.steps(variable))
        refusing = (step for step in steps if may_refuse(step.frame.jaxpr.eqns[step.number]))
        first = min(refusing, key=lambda step: step.frame.orders[step.number])
        where = location_of(first.frame, first.number)
        return f"constant: it is made of nothing that is differentiated, and {where} has a rule that may notice"

    def between(self, start: FrameVariable) -> str:
        """Returns what cuts every path from a variable to the loss, with locations."""
        reached = self._flow.closure([start])
        loss = self._root.jaxpr.outvars[0]
        if is_literal(loss) or FrameVariable(self._root, loss) not in reached:
            return self._disconnected(reached, start)
        barriers, rules = self._barriers(start), partial(self._rules, reached)
        reported = next(filter(None, map(_distinct, (barriers, rules(of_library=False), rules(of_library=True)))), [])
        more = f" and {len(reported) - _MOST_BARRIERS} more" if len(reported) > _MOST_BARRIERS else ""
        return "; ".join(reported[:_MOST_BARRIERS]) + more + self._on_purpose(start)

    def _on_purpose(self, start: FrameVariable) -> str:
        """Returns what shows that a gradient is kept away on purpose; "" where nothing does."""
        if self._is_frozen(start):
            return STOPPED
        return AS_DATA if self._data is not None and self._data.has(start) else ""

    def _is_frozen(self, start: FrameVariable) -> bool:
        """Returns whether every path to the loss passes a `stop_gradient` of an argument itself."""
        if start.frame is not self._root or start.atom not in self._root.jaxpr.invars:
            return False
        itself = self._flow.closure([start], _keeps_value)
        stopped = {step.to for variable in itself for step in self._flow.steps(variable) if _stops(step)}
        passed = self._flow.closure([start], lambda step: step.to not in stopped)
        return FrameVariable(self._root, self._root.jaxpr.outvars[0]) not in passed

    def _rules(self, reached: dict[FrameVariable, None], *, of_library: bool) -> Iterator[str]:
        """Yields the derivative rules on paths without a barrier, of which one returns no gradient."""
        for step in (step for variable in reached for step in self._flow.steps(variable)):
            rule = custom_rule(step.frame.jaxpr.eqns[step.number])
            if step.way == "compute" and rule is not None and rule.of_library is of_library:
                yield f"{location_of(step.frame, step.number)}, whose own rule may pass no gradient on"

    def _disconnected(self, reached: dict[FrameVariable, None], start: FrameVariable) -> str:
        """Returns the report on a value that does not lead to the loss."""
        others = (FrameVariable(self._root, atom) for atom in self._root.jaxpr.outvars[1:] if not is_literal(atom))
        use = ", only auxiliary outputs do" if any(each in reached for each in others) else _last_use(reached, start)
        return f"disconnected: the loss does not depend on it{use}"

    def _barriers(self, start: FrameVariable) -> Iterator[str]:
        """Yields the barriers on the paths of a value to the loss, in program order.

        A library stops gradients and compares values inside its own functions. Where the user's barriers cut every
        path without these, only the user's are reported; otherwise the library's come first.
        """
        steps = (
            self._cutting(start, lambda step: _cuts(step) and not _is_of_library(step))
            or self._cutting(start, _cuts)
            or self._ends([start], start, _cuts)[1]
        )
        places = {
            (_is_of_library(step), step.frame.orders[step.number], words): None
            for step in steps
            if (words := _words(step)) is not None
        }
        yield from (words for *_, words in sorted(places))

    def _cutting(self, start: FrameVariable, cuts: Callable[[Step], bool]) -> Sequence[Step]:
        """Returns the steps that cut all paths of a value to the loss; none where some path has none.

        Those behind others are among them as long as they cut all paths, too: a comparison beside which a path goes on
        is no reason behind a `stop_gradient`.
        """
        found: dict[Step, None] = {}
        behind: Sequence[FrameVariable] = [start]
        while behind:
            reaches, ends = self._ends(behind, start, cuts)
            new = [] if reaches else [step for step in ends if step not in found]
            found.update(dict.fromkeys(new))
            behind = [step.to for step in new]
        return list(found)

    def _ends(
        self, values: Sequence[FrameVariable], start: FrameVariable, cuts: Callable[[Step], bool]
    ) -> tuple[bool, Sequence[Step]]:
        """Returns whether a path from values to the loss has no cutting step, and the first ones on the others."""
        opened = self._flow.closure(values, lambda step: not cuts(step))
        before = (variable for variable in opened if not _is_in_solver(variable.frame, start))
        steps = (step for variable in before for step in self._flow.steps(variable) if cuts(step))
        ends = [step for step in steps if step.number in self._liveness.live(step.frame)]
        return FrameVariable(self._root, self._root.jaxpr.outvars[0]) in opened, ends


def _cuts(step: Step) -> bool:
    """Returns whether a step is a barrier, and not one from integers to integers behind one."""
    operands = step.frame.jaxpr.eqns[step.number].invars
    return _words(step) is not None and any(is_inexact(operand) for operand in operands)


def _is_of_library(step: Step) -> bool:
    """Returns whether a function of a library took a step, and not the user's own code."""
    return library_function(step.frame.jaxpr.eqns[step.number]) is not None


def _distinct(words: Iterator[str]) -> list[str]:
    return list(dict.fromkeys(words))


def _last_use(reached: dict[FrameVariable, None], start: FrameVariable) -> str:
    made = [(variable.frame, variable.frame.definitions[variable.atom][0]) for variable in reached if variable != start]
    uses = [(frame.orders[number], frame, number) for frame, number in made if number != OPERAND]
    if not uses:
        return ", nothing uses it"
    _, frame, number = max(uses, key=lambda use: use[0])
    return f", its last use is {location_of(frame, number)}"


def _not_executed(frame: Frame) -> str:
    """Returns the branch or the loop that a value is in, and that was not run."""
    at: Frame | None = frame
    while at is not None and not (at.transfer.exclusive or at.transfer.unbounded):
        at = at.parent
    if at is None or at.parent is None:
        return ""
    what = "a branch not taken" if at.transfer.exclusive else "a loop of no iterations"
    return f"{location_of(at.parent, at.key[-1][0])}, {what}"


def _hidden(frame: Frame) -> str:
    """Returns the outermost function with a derivative rule of its own that a value is in."""
    around = [frame]
    while around[-1].parent is not None:
        around.append(around[-1].parent)
    ruled = next((each for each in reversed(around) if each.transfer.beside), None)
    if ruled is None or ruled.parent is None:
        return ""
    return f"{location_of(ruled.parent, ruled.key[-1][0])}, whose own rule makes the gradients"


#: What states for some reasons which frame a value is in, and why that leaves it without a gradient.
_BY_FRAME: Final[Mapping[Reason, Callable[[Frame], str]]] = {"not-executed": _not_executed, "opaque": _hidden}


def _words(step: Step) -> str | None:
    """Returns the description and location of a step that is a barrier; None for one that is not."""
    equation, where = step.frame.jaxpr.eqns[step.number], location_of(step.frame, step.number)
    inside = step.frame.children.get(step.number, ())
    if inside and inside[0].transfer.gradients == "barred":
        return f"{where}, a loop that reverse mode cannot run backwards"
    if is_without_derivative(step.frame, step.number):
        return f"{where}, which JAX cannot differentiate"
    if step.way in _SOLVER and inside and _is_solver(inside[0]):
        return f"{where}, {_SOLVER[step.way]}"
    if step.way != "compute" or (is_inexact(step.to.atom) and not is_constant(equation)):
        return None
    name = equation.primitive.name
    if is_constant(equation):
        return where if name == "stop_gradient" else f"{where}, constant wherever it has a derivative"
    return f"{where}, {_INTEGER_PATHS.get(name, 'an integer path')}"


def _stops(step: Step) -> bool:
    return step.frame.jaxpr.eqns[step.number].primitive.name == "stop_gradient"


def _keeps_value(step: Step) -> bool:
    """Returns whether a step leads to the same numbers, or some of them.

    A value that a `while` loop or a choice of branches depends on (`choose`) is not among the results of these.
    """
    computes = step.way in ("compute", "choose")
    return not computes or step.frame.jaxpr.eqns[step.number].primitive.name in COPIES | SLICES


def _is_solver(frame: Frame) -> bool:
    return frame.kind == "linear_solve"


def _is_in_solver(frame: Frame, start: FrameVariable) -> bool:
    """Returns whether a frame is inside a solver that a value is not inside of."""
    around: Frame | None = frame
    while around is not None:
        if _is_solver(around) and start.frame.key[: len(around.key)] != around.key:
            return True
        around = around.parent
    return False


def location_of(frame: Frame, number: int) -> str:
    """Returns an equation's primitive, or the function with a rule of its own, and its location in the user's code."""
    equation = frame.jaxpr.eqns[number]
    rule, source = custom_rule(equation), source_in(frame, equation)
    name = equation.primitive.name if rule is None else rule.function
    return name if source is None else f"{name} at {source}"
