"""Execution order: one rank for every value and layer of a run, in each iteration of its loops."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from gradscope.tracing.jaxpr.frames import Loop, iterations
from gradscope.tracing.tracer import Trace

#: One number per enclosing loop, outermost first.
Iteration: TypeAlias = tuple[int, ...]

#: Program orders and iterations, alternating from the outermost loop inwards; sorts as execution does.
Moment: TypeAlias = tuple[int, ...]


class ExecutionOrder:
    """An `ExecutionOrder` ranks moments of execution: equal moments equally, later ones higher, without gaps."""

    def __init__(self, moments: Iterable[Moment]) -> None:
        self._ranks = {moment: rank for rank, moment in enumerate(sorted(set(moments)))}

    @classmethod
    def of_trace(cls, trace: Trace) -> ExecutionOrder:
        """Returns the order of all sites and layers of a traced loss."""
        sites = [(site.loops, site.order) for site in trace.sites]
        layers = [(layer.frame.loops, layer.order) for layer in trace.layers]
        return cls(moment for loops, order in sites + layers for moment in _moments(loops, order))

    @property
    def rank_after_all(self) -> int:
        """The rank after everything else."""
        return len(self._ranks)

    def rank(self, loops: Sequence[Loop], order: int, iteration: Iteration) -> int:
        """Returns the rank of program order `order` in one iteration of the loops around it."""
        return self._ranks[_moment(loops, order, iteration)]


def _moments(loops: Sequence[Loop], order: int) -> Iterator[Moment]:
    return (_moment(loops, order, iteration) for iteration in iterations(loops))


def _moment(loops: Sequence[Loop], order: int, iteration: Iteration) -> Moment:
    moment: list[int] = []
    for loop, turn in zip(loops, iteration, strict=True):
        if loop.length is None:
            turn = 0  # noqa: PLW2901 - of a `while`, only one iteration is observed
        elif loop.reverse:
            turn = loop.length - 1 - turn  # noqa: PLW2901
        moment += [loop.order, turn]
    return (*moment, order)
