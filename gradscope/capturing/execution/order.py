"""Execution order: one rank for every value and layer of a run, turns of loops included."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from gradscope.tracing.jaxpr.frames import Loop, iterations
from gradscope.tracing.tracer import Trace

#: One number per enclosing loop, outermost first.
Iteration: TypeAlias = tuple[int, ...]

#: Program orders and turns, alternating from the outermost loop inwards; sorts as execution does.
ValueAt: TypeAlias = tuple[int, ...]


class ExecutionOrder:
    """Ranks of moments: equal for equal moments, larger for later ones, without gaps."""

    def __init__(self, moments: Iterable[ValueAt]) -> None:
        self._ranks = {moment: rank for rank, moment in enumerate(sorted(set(moments)))}

    @classmethod
    def of_trace(cls, trace: Trace) -> ExecutionOrder:
        """The order of all sites and layers of a traced loss."""
        sites = [(site.loops, site.order) for site in trace.sites]
        layers = [(layer.frame.loops, layer.order) for layer in trace.layers]
        return cls(moment for loops, order in sites + layers for moment in _moments(loops, order))

    @property
    def rank_after_all(self) -> int:
        """The rank of what happens when everything else has."""
        return len(self._ranks)

    def rank(self, loops: Sequence[Loop], order: int, iteration: Iteration) -> int:
        """The rank of what happens at program order `order` in one turn of the loops around it."""
        return self._ranks[_moment(loops, order, iteration)]


def _moments(loops: Sequence[Loop], order: int) -> Iterator[ValueAt]:
    return (_moment(loops, order, iteration) for iteration in iterations(loops))


def _moment(loops: Sequence[Loop], order: int, iteration: Iteration) -> ValueAt:
    moment: list[int] = []
    for loop, turn in zip(loops, iteration, strict=True):
        if loop.length is None:
            turn = 0  # noqa: PLW2901 - of a `while`, one turn is observed, whichever it was
        elif loop.reverse:
            turn = loop.length - 1 - turn  # noqa: PLW2901
        moment += [loop.order, turn]
    return (*moment, order)
