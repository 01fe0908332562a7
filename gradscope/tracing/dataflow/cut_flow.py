"""A `CutFlow` finds the values that get to a target only through equations that count as cut."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from typing import NamedTuple

from gradscope.tracing.dataflow.forward import ForwardFlow, FrameVariable, Step
from gradscope.tracing.jaxpr.frames import Frame


class Cut(NamedTuple):
    """A `Cut` is an equation beyond which a value does not flow."""

    frame: Frame
    number: int


class CutFlow:
    """A `CutFlow` is the flow of some values towards a target. It visits every step once, whatever their number.

    Args:
        flow: The steps of the trace.
        starts: The values.
        target: Where they may get to.
        goes: Whether a step is taken.
        cuts: Whether the equation of a step is cut; not asked again for an equation that is.
    """

    def __init__(
        self,
        flow: ForwardFlow,
        starts: Iterable[FrameVariable],
        target: FrameVariable,
        goes: Callable[[Step], bool],
        cuts: Callable[[Step], bool],
    ) -> None:
        self._before: dict[FrameVariable, list[FrameVariable]] = {}
        at: dict[Cut, list[FrameVariable]] = {}
        seen = dict.fromkeys(starts)
        waiting = list(seen)
        while waiting:
            variable = waiting.pop()
            for step in filter(goes, flow.steps(variable)):
                cut = Cut(step.frame, step.number)
                if step.way == "compute" and (cut in at or cuts(step)):
                    at.setdefault(cut, []).append(variable)
                    continue
                self._before.setdefault(step.to, []).append(variable)
                if step.to not in seen:
                    seen[step.to] = None
                    waiting.append(step.to)
        reaching = self._leading_to([target], frozenset())
        self._cuts: dict[FrameVariable, list[Cut]] = {}
        for cut, variables in at.items():
            # What leads to a value that gets to the target gets there, too.
            for variable in self._leading_to([each for each in variables if each not in reaching], reaching):
                self._cuts.setdefault(variable, []).append(cut)

    def cuts_of(self, value: FrameVariable) -> list[Cut]:
        """Returns the cuts on the ways of a value; none where one of its ways gets to the target."""
        return self._cuts.get(value, [])

    def _leading_to(
        self, ends: Iterable[FrameVariable], without: Container[FrameVariable]
    ) -> dict[FrameVariable, None]:
        found = dict.fromkeys(ends)
        waiting = list(found)
        while waiting:
            for variable in self._before.get(waiting.pop(), ()):
                if variable not in found and variable not in without:
                    found[variable] = None
                    waiting.append(variable)
        return found
