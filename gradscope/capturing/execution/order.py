"""The execution order has one rank for every value and layer of a run, in each iteration of its loops."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from gradscope.naming import IterationIndex
from gradscope.tracing.jaxpr.frames import Loop, iterations
from gradscope.tracing.tracer import Trace

#: Program orders of the loops around something and their iterations, alternating from the outermost loop inwards, then
#: the program order of the thing itself; sorts as execution does.
OrderKey: TypeAlias = tuple[int, ...]


class ExecutionOrder:
    """An `ExecutionOrder` ranks order keys: equal keys equally, later ones higher, without gaps."""

    def __init__(self, keys: Iterable[OrderKey]) -> None:
        self._keys = sorted(set(keys))
        self._ranks = {key: rank for rank, key in enumerate(self._keys)}

    @classmethod
    def of_trace(cls, trace: Trace) -> ExecutionOrder:
        """Returns the order of all sites and layers of a traced loss."""
        sites = [(site.loops, site.order) for site in trace.sites]
        layers = [(layer.frame.loops, layer.order) for layer in trace.layers]
        return cls(key for loops, order in sites + layers for key in _keys(loops, order))

    @property
    def rank_after_all(self) -> int:
        """The rank after everything else."""
        return len(self._ranks)

    def rank(self, loops: Sequence[Loop], order: int, iteration: IterationIndex) -> int:
        """Returns the rank of program order `order` in one iteration of the loops around it."""
        return self._ranks[_key(loops, order, iteration)]

    def rank_between(self, loops: Sequence[Loop], order: int, iteration: IterationIndex) -> int:
        """Returns the rank of something that need not have one: that of the next thing that has."""
        return bisect_left(self._keys, _key(loops, order, iteration))


def _keys(loops: Sequence[Loop], order: int) -> Iterator[OrderKey]:
    return (_key(loops, order, iteration) for iteration in iterations(loops))


def _key(loops: Sequence[Loop], order: int, iteration: IterationIndex) -> OrderKey:
    key: list[int] = []
    for loop, index in zip(loops, iteration, strict=True):
        if loop.length is None:
            index = 0  # noqa: PLW2901 - of a `while`, only one iteration is observed
        elif loop.reverse:
            index = loop.length - 1 - index  # noqa: PLW2901
        key += [loop.order, index]
    return (*key, order)
