"""Ends: the values at which the pieces of an isolated candidate end, whose layers they are, and what reads what."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from gradscope import naming
from gradscope.arrays.dtypes import is_key
from gradscope.capturing.execution.order import ExecutionOrder
from gradscope.capturing.isolate.pinned_values import HeldValues
from gradscope.tracing.dataflow.between_known_values import Pieces
from gradscope.tracing.jaxpr.frames import resolve
from gradscope.tracing.jaxpr.iterations import ValueAt
from gradscope.tracing.tracer import Trace

#: What stands for what is computed after the last layer.
_LOSS: Final = "(loss)"


class Ends:
    """The held values of a candidate, and those of its outputs that are no layer's.

    Args:
        trace: The candidate's loss.
        held: What its layers are held to.

    Attributes:
        loss: The loss's own value; None where it is a constant.
        outputs: What the outputs that are no layer's are called.
    """

    def __init__(self, trace: Trace, held: HeldValues) -> None:
        self._trace = trace
        self._held = held
        self._order = ExecutionOrder.of_trace(trace)
        value = resolve(trace.root, trace.root.jaxpr.outvars[0])
        self.loss = None if value is None else ValueAt(value, ())
        self.outputs = dict(self._named_outputs())
        # Only what a cotangent is given for, or should be, sends any back.
        pulled = {*held.with_cotangent, *held.without_cotangent, *([] if self.loss is None else [self.loss])}
        self._readers = Pieces(trace.root, held.keys).readers(pulled)

    def readers(self, moment: ValueAt) -> Sequence[ValueAt]:
        """The ends of the pieces that read a held value or an argument, and send a cotangent back to it."""
        return self._readers.get(moment, ())

    def layers(self, ends: Iterable[ValueAt]) -> tuple[str, ...]:
        """The layers that some ends belong to, in execution order."""
        return tuple(dict.fromkeys(self._name(end) for end in sorted(ends, key=self._rank)))

    def sources(self) -> dict[str, str | None]:
        """The source of every layer by path, in execution order; then what is made after the last layer."""
        known = {layer.path: layer.source for layer in self._trace.layers}
        found: dict[str, str | None] = {}
        for moment in sorted(self._held.keys, key=self._rank):
            found.setdefault(self._name(moment), known[self._held.sites[moment.value].names[0].path])
        return found | dict.fromkeys(self.outputs.values())

    def _named_outputs(self) -> Iterator[tuple[ValueAt, str]]:
        names = (_LOSS, *(naming.key_of(naming.AUX, leaf.name) for leaf in self._trace.auxiliary))
        for name, atom in zip(names, self._trace.root.jaxpr.outvars, strict=True):
            value = resolve(self._trace.root, atom)
            moment = None if value is None else ValueAt(value, ())
            if moment is not None and moment not in self._held.keys and not is_key(str(atom.aval.dtype)):
                yield moment, name

    def _name(self, end: ValueAt) -> str:
        if end in self.outputs:
            return self.outputs[end]
        return str(self._held.sites[end.value].names[0].path.at(end.turn))

    def _rank(self, end: ValueAt) -> int:
        if end in self.outputs:
            return self._order.rank_after_all
        site = self._held.sites[end.value]
        return self._order.rank(site.loops, site.order, end.turn)
