"""The ledger of a run states which sites, terms and arguments have a tensor, and why the others have none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gradscope import naming
from gradscope.capturing.execution.run import Run
from gradscope.capturing.records.pending_tensors import PendingTensor
from gradscope.capturing.records.term_records import why_no_term
from gradscope.dump.manifest.manifest import Ledger, LedgerLine
from gradscope.dump.record import Reason, Record
from gradscope.instrument.query.planning import selects_site
from gradscope.instrument.query.terms import Terms
from gradscope.tracing.dataflow.gradient_barriers import Barriers
from gradscope.tracing.dataflow.reachability import Reach
from gradscope.tracing.dataflow.stopped_data import StoppedData
from gradscope.tracing.jaxpr.frames import OPERAND, Loop, ValueKey, iterations
from gradscope.tracing.layers.sites import Site
from gradscope.tracing.layers.unread import unread_values
from gradscope.tracing.layers.uses import UseKey
from gradscope.tracing.tracer import Trace


class RunLedger:
    """A `RunLedger` counts the tensors that a run captured, and lists those that it did not capture with the reason.

    Args:
        run: The run, or one of the runs that together observe a loss.
    """

    def __init__(self, run: Run) -> None:
        # Not the run itself, which would keep its tensors in memory.
        self._trace, self._spec = run.trace, run.spec
        root, liveness, constants = run.trace.root, run.trace.liveness, run.trace.constants_before_rules
        data = _stopped_data(run.trace)
        self._barriers = Barriers(root, liveness, constants, data) if run.plan.is_of_loss else None
        self._captured = 0
        self._missing: list[LedgerLine] = []
        self._accounted: set[tuple[ValueKey | UseKey, str]] = set()

    def add(self, pending: PendingTensor, record: Record) -> None:
        """Counts a record of a tensor."""
        value = pending.origin.value
        self._accounted.add((value, pending.family))
        if record.absent is not None:
            detail = self._detail(value, record.family, record.absent)
            line = LedgerLine(name=record.name, family=record.family, reason=record.absent, detail=detail)
            self._missing.append(line)
        elif record.alias_of is None and record.shard is None:
            self._captured += 1

    def ledger(self) -> Ledger:
        """Returns the account of everything, once all records have been added."""
        lines = (*self._sites(), *self._unread(), *self._terms(), *self._arguments())
        return Ledger(captured=self._captured, missing=(*self._missing, *lines))

    def _detail(self, value: ValueKey | UseKey, family: str, reason: Reason) -> str:
        if self._barriers is None or not isinstance(value, ValueKey) or not flows(family):
            return ""
        return self._barriers.detail(value, reason)

    def _sites(self) -> Iterator[LedgerLine]:
        """Yields the sites that no record is of, by their names without iterations."""
        for site in self._trace.sites:
            if self._spec.operations or not all(name.operation for name in site.names):
                for family in (naming.ACTIVATION, naming.ACTIVATION_GRAD):
                    if site.names and (site.value, family) not in self._accounted:
                        yield self._line(site, family)

    def _line(self, site: Site, family: str) -> LedgerLine:
        name, *others = (name.template for name in site.names if self._spec.operations or not name.operation)
        detail = f"also called {', '.join(others)}" if others else ""
        return LedgerLine(name=name, family=family, reason=self._why(site, family), detail=detail)

    def _unread(self) -> Iterator[LedgerLine]:
        """Yields what operations make beside the values observed, and nothing that is run reads."""
        if not self._spec.operations:
            return
        for name, frame in unread_values(self._trace.root, self._trace.layers, self._trace.liveness):
            for family in (naming.ACTIVATION, naming.ACTIVATION_GRAD):
                selected = any(self._spec.selects_layer(family, name, at) for at in iterations(frame.loops))
                reason = self._reason(family, frame.loops, selected=selected, opaque=frame.opaque)
                yield LedgerLine(name=name.template, family=family, reason=reason)

    def _why(self, site: Site, family: str) -> Reason:
        selected = selects_site(self._spec, site, family)
        return self._reason(family, site.loops, selected=selected, opaque=site.opaque)

    def _reason(self, family: str, loops: Sequence[Loop], *, selected: bool, opaque: bool) -> Reason:
        """Returns why a run has no tensor of a value; that the user left it out comes before all other reasons."""
        if family in self._spec.families and any(loop.length == 0 for loop in loops):
            return "not-executed"  # options select by iterations, of which there is none
        if not selected:
            return "filtered"
        return "opaque" if opaque else "eliminated"

    def _terms(self) -> Iterator[LedgerLine]:
        for term in Terms(self._trace, self._spec).candidates():
            if (term.use.key, naming.TERM) not in self._accounted:
                reason = why_no_term(term, self._spec)
                yield LedgerLine(name=term.use.name.template, family=naming.TERM, reason=reason)

    def _arguments(self) -> Iterator[LedgerLine]:
        for number, leaf in enumerate(self._trace.arguments):
            each = naming.EXAMPLE_GRAD if self._spec.per_example and leaf.family == naming.PARAM else None
            for family in (leaf.family, naming.gradient_family(leaf.family), each):
                if family is not None and (ValueKey((), OPERAND, number), family) not in self._accounted:
                    yield LedgerLine(name=leaf.name, family=family, reason="filtered")


def flows(family: str) -> bool:
    """Returns whether a family has gradients of the run of the full batch, which are the ones that are investigated."""
    return naming.is_gradient(family) and family != naming.EXAMPLE_GRAD


def _stopped_data(trace: Trace) -> StoppedData:
    leaves = list(enumerate(trace.arguments))
    params = {at: leaf for at, leaf in leaves if leaf.family == naming.PARAM and leaf.differentiated}
    trained = {at: leaf.name for at, leaf in params.items() if trace.reachability.arguments[at] is Reach.GRADIENT}
    return StoppedData(
        trace.root,
        trace.liveness,
        trained=trained,
        stopped={at: leaf.name for at, leaf in params.items() if at not in trained},
        batch=[at for at, leaf in leaves if leaf.family == naming.INPUT],
    )
