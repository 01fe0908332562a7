"""A capture session: from a run to the records of a dump and the facts that go beside them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import chain

import numpy as np

from gradscope import naming
from gradscope.capturing.execution.order import ExecutionOrder
from gradscope.capturing.execution.run import Run
from gradscope.capturing.explain.zero_gradients import Zero, causes_of
from gradscope.capturing.records.example_gradients import ExampleGradients, pending_examples
from gradscope.capturing.records.layer_tree import LayerTree
from gradscope.capturing.records.measure import Reading
from gradscope.capturing.records.pending_tensors import PendingTensor, pending_tensors
from gradscope.capturing.records.prefetch import Ahead, in_order
from gradscope.capturing.records.term_records import pending_terms, why_no_term
from gradscope.dump.manifest.manifest import Cause, Layer, Ledger, LedgerLine
from gradscope.dump.record import Reason, Record
from gradscope.instrument.query.planning import wants_site
from gradscope.instrument.query.terms import Terms
from gradscope.naming import IterationIndex
from gradscope.stats.columns import is_all_zero
from gradscope.tracing.dataflow.gradient_barriers import Barriers
from gradscope.tracing.jaxpr.frames import OPERAND, ValueKey
from gradscope.tracing.layers.sites import Site
from gradscope.tracing.layers.uses import UseKey

#: How far statistics are ahead of the writer: tensors that are on the host at a time, beside what the device holds.
AHEAD = Ahead(batches=4, batch_items=64, batch_bytes=4 << 20)


class Session:
    """A `Session` yields the records of a run one by one; layers, ledger and loss are complete after the last.

    Args:
        run: The run.
        reading: How observations become statistics.
        further: Runs of the same loss that observe more of it, each started after the last record of the one before.

    Attributes:
        nonfinite: Whether the loss or a gradient yielded so far has a NaN or an infinity. A value that has one may
            be meant so, as a mask is.
        zeros: The gradients yielded so far that are exactly zero.
    """

    def __init__(self, run: Run, reading: Reading, further: Iterable[Run] = ()) -> None:
        self._run = run
        self._further = further
        self._reading = reading
        self._order = ExecutionOrder.of_trace(run.trace)
        self._tree = LayerTree(run, self._order)
        self.nonfinite = not math.isfinite(self.loss() or 0.0)
        self.zeros: list[Zero] = []
        self._captured = 0
        self._missing: list[LedgerLine] = []
        self._flowing: set[ValueKey] = set()
        self._barriers = Barriers(run.trace.root)
        self._accounted: set[tuple[ValueKey | UseKey, str]] = set()

    def records(self) -> Iterator[Record]:
        """Yields every record of the run, in the order in which a dump holds them."""
        yield from self._records_of(self._run)
        self._run = self._run.without_tensors()
        for run in self._further:
            yield from self._records_of(run)
            if not run.sites_only:
                self._run = run.without_tensors()
            del run  # its tensors must not stay in memory until the next has run

    @property
    def run(self) -> Run:
        """The run, without the tensors whose records have been yielded."""
        return self._run

    def _records_of(self, run: Run) -> Iterator[Record]:
        return self._measured(chain(pending_tensors(run, self._order), pending_terms(run, self._order)))

    def example_records(self, gradients: ExampleGradients, count: int) -> Iterator[Record]:
        """Yields the records of the gradients of each of so many examples, which come after those of the run."""
        return self._measured(pending_examples(self._run, self._order, gradients, count))

    def _measured(self, pieces: Iterable[PendingTensor]) -> Iterator[Record]:
        for measured in in_order(self._reading.measured, pieces, ahead=AHEAD, size_of=_size_bytes):
            self._tree.note(measured.pending, measured.power)
            for record in map(self._reading.kept, measured.records):
                self.nonfinite |= _flows(record.family) and _nonfinite(record)
                self._account(measured.pending, record)
                yield record

    def loss(self) -> float | None:
        """Returns the loss; None where it was not requested."""
        loss = self._run.observed.loss
        return None if loss is None else float(np.asarray(loss))

    def layers(self) -> tuple[Layer, ...]:
        """Returns the layer tree."""
        return self._tree.layers()

    def ledger(self) -> Ledger:
        """Returns the account of every site: what was captured and why the others were not."""
        return Ledger(captured=self._captured, missing=(*self._missing, *self._left_out()))

    def causes(self, most_bytes: int) -> tuple[Cause, ...]:
        """Why gradients are exactly zero; where any is, the loss is run once more to see.

        Args:
            most_bytes: How much may be looked at.

        Raises:
            ModelError: The loss failed.
        """
        return causes_of(self._run, self.zeros, self._flowing, most_bytes)

    def _account(self, pending: PendingTensor, record: Record) -> None:
        value = pending.origin.value
        self._accounted.add((value, pending.family))
        whole = value if isinstance(value, ValueKey) and _flows(record.family) else None
        if record.absent is not None:
            of_loss = self._run.plan.is_of_loss
            detail = self._barriers.detail(whole, record.absent) if whole is not None and of_loss else ""
            line = LedgerLine(name=record.name, family=record.family, reason=record.absent, detail=detail)
            self._missing.append(line)
        elif record.alias_of is None and record.shard is None:
            self._captured += 1
            if whole is not None:
                self._note_gradient(whole, pending.origin.turn, record)

    def _note_gradient(self, value: ValueKey, turn: IterationIndex, record: Record) -> None:
        if is_all_zero(record.stats):
            self.zeros.append(Zero(family=record.family, name=record.name, value=value, turn=turn))
        else:
            self._flowing.add(value)

    def _why(self, site: Site, family: str) -> Reason:
        """Returns why a run has no tensor for a site; that the user left it out comes before all other reasons."""
        if not wants_site(self._run.wanted, site, family):
            return "filtered"
        return "opaque" if site.opaque else "eliminated"

    def _left_out(self) -> Iterator[LedgerLine]:
        """Yields what the run has no tensor for: sites and terms, by their names without iterations, and arguments."""
        shown = self._run.wanted.operations
        for site in (site for site in self._run.trace.sites if shown or not all(n.operation for n in site.names)):
            for family in (naming.ACTIVATION, naming.ACTIVATION_GRAD):
                if site.names and (site.value, family) not in self._accounted:
                    yield LedgerLine(name=site.names[0].template, family=family, reason=self._why(site, family))
        for term in Terms(self._run.trace, self._run.wanted).candidates():
            if (term.use.key, naming.TERM) not in self._accounted:
                reason = why_no_term(term, self._run.wanted)
                yield LedgerLine(name=term.use.name.template, family=naming.TERM, reason=reason)
        for number, leaf in enumerate(self._run.trace.arguments):
            each = naming.EXAMPLE_GRAD if self._run.wanted.per_example and leaf.family == naming.PARAM else None
            for family in (leaf.family, naming.gradient_family(leaf.family), each):
                if family is not None and (ValueKey((), OPERAND, number), family) not in self._accounted:
                    yield LedgerLine(name=leaf.name, family=family, reason="filtered")


def _size_bytes(pending: PendingTensor) -> int:
    return 0 if pending.observation is None else pending.observation.size_bytes


def _flows(family: str) -> bool:
    """Whether a family holds what flows back in the run of the whole batch, which is what is looked into further."""
    return naming.is_gradient(family) and family != naming.EXAMPLE_GRAD


def _nonfinite(record: Record) -> bool:
    return bool(record.stats.get("nan") or record.stats.get("inf"))
