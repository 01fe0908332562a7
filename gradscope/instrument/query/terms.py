"""Which terms of gradients are shown, and of which value each is a term.

There are two selections of the same tensors. *Operands*: at every operation, the gradient with respect to each of its
floating-point operands as that operation sees it. *Terms*: for every value shown that is used several times, the
gradient that comes back from each use, which sum to the value's own; the term of a value's only use is that already.
What is differentiated itself has its initial gradient besides, which comes back from no use.

A term is named by the operation and the number of its operand, `block[0]/add1/add.0`. In one iteration of the loops
around the operation it belongs to one value, in the next perhaps to another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from gradscope import naming
from gradscope.instrument.plan import Term
from gradscope.instrument.query.capture_spec import Wanted
from gradscope.naming import IterationIndex
from gradscope.tracing.dataflow.reachability import Reach
from gradscope.tracing.jaxpr.frames import OPERAND, ValueKey, iterations
from gradscope.tracing.jaxpr.iterations import CarryOrigins, ValueAt
from gradscope.tracing.layers.uses import Use, find_uses
from gradscope.tracing.tracer import Trace


class Terms:
    """The terms of a trace that are candidates to be shown.

    Args:
        trace: The trace; made with operations where any term is wanted.
        wanted: What is shown.
    """

    def __init__(self, trace: Trace, wanted: Wanted) -> None:
        self._wanted = wanted
        self._frames = {frame.key: frame for frame in trace.root.walk()}
        self._origins = CarryOrigins(self._frames)
        self._names = {site.value: site.names for site in trace.sites}
        self._arguments = [naming.key_of(leaf.family, leaf.name) for leaf in trace.arguments]
        looks_at_uses = wanted.operands or wanted.terms
        self._uses = find_uses(trace.root, trace.layers, trace.liveness, trace.reachability) if looks_at_uses else []
        whole = (self._moment(use, turn) for use in self._uses if _counts(use) for turn in iterations(use.loops))
        self._shared = {moment for moment, count in Counter(whole).items() if moment is not None and count > 1}

    def candidates(self) -> Iterator[Term]:
        """Every use that is one of those selected, with the iterations in which it is."""
        for use in self._uses:
            moments = {turn: self._moment(use, turn) for turn in iterations(use.loops)}
            of = {turn: self._key(moment) for turn, moment in moments.items() if self._is_selected(use, moment)}
            if of:
                yield Term(use=use, of=of)

    def wanted(self) -> Iterator[Term]:
        """Those of the candidates that are wanted, with the iterations in which they are."""
        for term in self.candidates():
            of = {turn: key for turn, key in term.of.items() if self._wanted.wants_term(name_of(term, turn), key)}
            if of:
                yield Term(use=term.use, of=of)

    def _moment(self, use: Use, turn: IterationIndex) -> ValueAt | None:
        """The value that a term belongs to in one iteration, in the iteration that made it; None for no value."""
        if use.value is None or not use.whole:
            return None
        return self._origins.of(ValueAt(use.value, turn[: len(self._frames[use.value.frame].loops)]))

    def _is_selected(self, use: Use, moment: ValueAt | None) -> bool:
        if self._wanted.operands and use.operand and self._wanted.shows(use.name):
            return True
        return self._wanted.terms and moment in self._shared and self._shows(moment)

    def _shows(self, moment: ValueAt | None) -> bool:
        """Whether a value is one of those shown: a layer's, an operation's, or an argument."""
        if moment is None:
            return False
        return _is_argument(moment) or any(map(self._wanted.shows, self._names.get(moment.value, ())))

    def _key(self, moment: ValueAt | None) -> str | None:
        """The key of a value in a dump; None for a value without a name."""
        if moment is None:
            return None
        if _is_argument(moment):
            return self._arguments[moment.value.position]
        names = self._names.get(moment.value, ())
        shown = next((name for name in names if self._wanted.shows(name)), names[0] if names else None)
        return None if shown is None else naming.key_of(naming.ACTIVATION, str(shown.at(moment.turn)))


def name_of(term: Term, turn: IterationIndex) -> str:
    """The name of a term in one iteration of the loops around it."""
    return str(term.use.name.at(turn))


def _counts(use: Use) -> bool:
    """Whether anything comes back from a use, or would if reverse mode could get there."""
    return use.reach >= Reach.GRADIENT and not use.eliminated


def _is_argument(moment: ValueAt) -> bool:
    return moment.value == ValueKey((), OPERAND, moment.value.position)
