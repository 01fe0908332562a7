"""Selected terms of gradients are found with the value that each is a term of.

There are two selections of the same tensors. *Operands*: at every operation, the gradient with respect to each of its
floating-point operands as that operation sees it. *Terms*: for every value shown that is used several times, the
gradient that comes back from each use. These sum to the value's own gradient; the term of a value's only use is equal
to it. A value that is itself differentiated also has its initial gradient, which comes back from no use.

A term is named by the operation and the number of its operand, `block[0]/add1/add.0`. In one iteration of the loops
around the operation it belongs to one value, in the next perhaps to another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from gradscope import naming
from gradscope.instrument.plan import Term
from gradscope.instrument.query.capture_spec import CaptureSpec
from gradscope.naming import IterationIndex
from gradscope.tracing.dataflow.reachability import Reach
from gradscope.tracing.jaxpr.frames import OPERAND, ValueKey, iterations
from gradscope.tracing.jaxpr.iterations import CarryOrigins, ValueAt
from gradscope.tracing.layers.uses import Use, find_uses
from gradscope.tracing.tracer import Trace


class Terms:
    """`Terms` selects the terms of a trace.

    Args:
        trace: The trace; made with operations where any term is selected.
        spec: The selection that is shown.
    """

    def __init__(self, trace: Trace, spec: CaptureSpec) -> None:
        self._spec = spec
        self._frames = {frame.key: frame for frame in trace.root.walk()}
        self._origins = CarryOrigins(self._frames)
        self._names = {site.value: site.names for site in trace.sites}
        self._arguments = [naming.key_of(leaf.family, leaf.name) for leaf in trace.arguments]
        looks_at_uses = spec.operands or spec.terms
        self._uses = find_uses(trace.root, trace.layers, trace.liveness, trace.reachability) if looks_at_uses else []
        summed = (
            self._value_at(use, iteration) for use in self._uses if _counts(use) for iteration in iterations(use.loops)
        )
        self._shared = {value_at for value_at, count in Counter(summed).items() if value_at is not None and count > 1}

    def candidates(self) -> Iterator[Term]:
        """Yields every use of the kinds that the spec selects, with the iterations in which it is one."""
        for use in self._uses:
            values_at = {iteration: self._value_at(use, iteration) for iteration in iterations(use.loops)}
            of = {
                iteration: self._key(value_at)
                for iteration, value_at in values_at.items()
                if self._is_selected(use, value_at)
            }
            if of:
                yield Term(use=use, of=of)

    def spec(self) -> Iterator[Term]:
        """Yields the candidates that are selected, with the iterations in which they are."""
        for term in self.candidates():
            of = {
                iteration: key
                for iteration, key in term.of.items()
                if self._spec.selects_term(name_of(term, iteration), key)
            }
            if of:
                yield Term(use=term.use, of=of)

    def _value_at(self, use: Use, iteration: IterationIndex) -> ValueAt | None:
        """Returns the value that a term belongs to in one iteration, in the iteration that made it; or None."""
        if use.value is None or not use.is_summand:
            return None
        return self._origins.of(ValueAt(use.value, iteration[: len(self._frames[use.value.frame].loops)]))

    def _is_selected(self, use: Use, value_at: ValueAt | None) -> bool:
        if self._spec.operands and use.operand and self._spec.shows(use.name):
            return True
        return self._spec.terms and value_at in self._shared and self._shows(value_at)

    def _shows(self, value_at: ValueAt | None) -> bool:
        """Returns whether a value is shown as a layer's, an operation's, or an argument."""
        if value_at is None:
            return False
        return _is_argument(value_at) or any(map(self._spec.shows, self._names.get(value_at.value, ())))

    def _key(self, value_at: ValueAt | None) -> str | None:
        """Returns the key of a value in a dump; None for a value without a name."""
        if value_at is None:
            return None
        if _is_argument(value_at):
            return self._arguments[value_at.value.position]
        names = self._names.get(value_at.value, ())
        shown = next((name for name in names if self._spec.shows(name)), names[0] if names else None)
        return None if shown is None else naming.key_of(naming.ACTIVATION, str(shown.at(value_at.iteration)))


def name_of(term: Term, iteration: IterationIndex) -> str:
    """Returns the name of a term in one iteration of the loops around it."""
    return str(term.use.name.at(iteration))


def _counts(use: Use) -> bool:
    """Returns whether a gradient comes back from a use, or would if reverse mode could get there."""
    return use.reach >= Reach.GRADIENT and not use.eliminated


def _is_argument(value_at: ValueAt) -> bool:
    return value_at.value == ValueKey((), OPERAND, value_at.value.position)
