"""Terms are the summands of a gradient, one for each use of its value, and pending tensors like any other."""

from __future__ import annotations

from collections.abc import Iterator

from gradscope import naming
from gradscope.capturing.execution.observation import Observation
from gradscope.capturing.execution.order import ExecutionOrder
from gradscope.capturing.execution.run import Run, SiteIteration, site_iterations
from gradscope.capturing.records.pending_tensors import PendingTensor, Source, TensorOrigin, pending_of, record_of
from gradscope.dump.record import Reason, SiteFacts
from gradscope.instrument.plan import Term
from gradscope.instrument.query.capture_spec import CaptureSpec
from gradscope.instrument.query.terms import name_of
from gradscope.naming import IterationIndex
from gradscope.tracing.dataflow.reachability import Reach


def pending_terms(run: Run, order: ExecutionOrder) -> Iterator[PendingTensor]:
    """Yields every term of a run, in the order in which the operations run that use the values."""
    terms = list(enumerate(run.plan.terms, len(run.plan.sites)))
    found = [
        (n, term, iteration)
        for n, term in terms
        for iteration in site_iterations(run, n)
        if iteration.nominal in term.of
    ]
    for number, term, iteration in sorted(found, key=lambda each: _rank(order, each[1], each[2].nominal)):
        origin = TensorOrigin(term.use.key, iteration.nominal, _facts(order, term, iteration.nominal))
        record = record_of(naming.TERM, name_of(term, iteration.iteration), term.use, origin)
        yield pending_of(record, origin, _cotangent(run, number, iteration))


def why_no_term(term: Term, spec: CaptureSpec) -> Reason:
    """Returns why a run has no tensor for a term; that the user left it out comes before all other reasons."""
    if not any(spec.selects_term(name_of(term, iteration), of) for iteration, of in term.of.items()):
        return "filtered"
    if term.use.opaque:
        return "opaque"
    if term.use.eliminated:
        return "eliminated"
    return "forward-only" if term.use.reach is Reach.BARRED else "disconnected"


def _cotangent(run: Run, number: int, iteration: SiteIteration) -> Source:
    if not iteration.executed:
        return "not-executed"
    if number not in run.reached.sites:
        return "disconnected"
    return Observation(value=run.observed.cotangents[number], at=iteration.at)


def _facts(order: ExecutionOrder, term: Term, iteration: IterationIndex) -> SiteFacts:
    user, layer = term.use.user, term.use.user.innermost_layer
    return SiteFacts(
        index=_rank(order, term, iteration),
        source=user.source,
        primitive=user.primitive,
        layer=None if layer is None else str(layer.path.at(iteration)),
        iteration=iteration,
        operation=True,
        of=term.of[iteration],
    )


def _rank(order: ExecutionOrder, term: Term, iteration: IterationIndex) -> int:
    """Returns the rank of the operation; for an output of an iteration, the rank of the loop."""
    loops = term.use.user.frame.loops
    return order.rank(loops, term.use.user.order, iteration[: len(loops)])
