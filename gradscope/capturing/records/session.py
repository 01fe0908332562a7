"""A capture session: from a run to the records of a dump and the facts that go beside them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import chain

import numpy as np

from gradscope import naming
from gradscope.capturing.execution.order import ExecutionOrder, Iteration
from gradscope.capturing.execution.run import Run
from gradscope.capturing.explain.zero_gradients import Zero, causes_of
from gradscope.capturing.records.drafts import Draft, drafts
from gradscope.capturing.records.example_gradients import ExampleGradients, example_drafts
from gradscope.capturing.records.layer_tree import LayerTree
from gradscope.capturing.records.measure import Reading
from gradscope.capturing.records.prefetch import Ahead, in_order
from gradscope.capturing.records.term_records import term_drafts, why_no_term
from gradscope.dump.manifest.manifest import Cause, Layer, Ledger, LedgerLine
from gradscope.dump.record import Reason, Record
from gradscope.instrument.query.planning import wants_site
from gradscope.instrument.query.terms import Terms
from gradscope.stats.columns import is_all_zero
from gradscope.tracing.dataflow.gradient_barriers import Barriers
from gradscope.tracing.jaxpr.frames import OPERAND, ValueKey
from gradscope.tracing.layers.sites import Site
from gradscope.tracing.layers.uses import UseKey

#: How far statistics are ahead of the writer: tensors that are on the host at a time, beside what the device holds.
AHEAD = Ahead(batches=4, batch_items=64, batch_bytes=4 << 20)


class Session:
    """Hands out a run's records one by one; layers, ledger and loss are complete when the last has been handed out.

    Args:
        run: The run.
        reading: How observations become statistics.
        further: Runs of the same loss that observe more of it, each started when the one before has been handed out.

    Attributes:
        nonfinite: Whether the loss or a gradient handed out so far has a NaN or an infinity. A value that has one may
            be meant so, as a mask is.
        zeros: The gradients handed out so far that are exactly zero.
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
        """Every record of the run, in the order in which a dump holds them."""
        yield from self._records_of(self._run)
        self._run = self._run.without_tensors()
        for run in self._further:
            yield from self._records_of(run)
            if not run.sites_only:
                self._run = run.without_tensors()
            del run  # what it handed out must not stay until the next has run

    @property
    def run(self) -> Run:
        """The run, without the tensors that have been handed out."""
        return self._run

    def _records_of(self, run: Run) -> Iterator[Record]:
        return self._measured(chain(drafts(run, self._order), term_drafts(run, self._order)))

    def example_records(self, gradients: ExampleGradients, count: int) -> Iterator[Record]:
        """The records of the gradients of each of so many examples, behind those of the run."""
        return self._measured(example_drafts(self._run, self._order, gradients, count))

    def _measured(self, pieces: Iterable[Draft]) -> Iterator[Record]:
        for measured in in_order(self._reading.measured, pieces, ahead=AHEAD, size_of=_size_bytes):
            self._tree.note(measured.draft, measured.power)
            for record in map(self._reading.kept, measured.records):
                self.nonfinite |= _flows(record.family) and _nonfinite(record)
                self._account(measured.draft, record)
                yield record

    def loss(self) -> float | None:
        """The loss; None where it was not asked for, or is a complex value."""
        loss = self._run.observed.loss
        return None if loss is None or np.iscomplexobj(loss) else float(np.asarray(loss))

    def layers(self) -> tuple[Layer, ...]:
        """The layer tree."""
        return self._tree.layers()

    def ledger(self) -> Ledger:
        """The account of every site: what was captured and why the others were not."""
        return Ledger(captured=self._captured, missing=(*self._missing, *self._left_out()))

    def causes(self, most_bytes: int) -> tuple[Cause, ...]:
        """Why gradients are exactly zero; where any is, the loss is run once more to see.

        Args:
            most_bytes: How much may be looked at.

        Raises:
            ModelError: The loss failed.
        """
        return causes_of(self._run, self.zeros, self._flowing, most_bytes)

    def _account(self, draft: Draft, record: Record) -> None:
        value = draft.origin.value
        self._accounted.add((value, draft.family))
        whole = value if isinstance(value, ValueKey) and _flows(record.family) else None
        if record.absent is not None:
            of_loss = self._run.plan.is_of_loss
            detail = self._barriers.detail(whole, record.absent) if whole is not None and of_loss else ""
            line = LedgerLine(name=record.name, family=record.family, reason=record.absent, detail=detail)
            self._missing.append(line)
        elif record.alias_of is None and record.shard is None:
            self._captured += 1
            if whole is not None:
                self._note_gradient(whole, draft.origin.turn, record)

    def _note_gradient(self, value: ValueKey, turn: Iteration, record: Record) -> None:
        if is_all_zero(record.stats):
            self.zeros.append(Zero(family=record.family, name=record.name, value=value, turn=turn))
        else:
            self._flowing.add(value)

    def _why(self, site: Site, family: str) -> Reason:
        """Why a site was never drafted; what the user left out is the user's word first."""
        if not wants_site(self._run.wanted, site, family):
            return "filtered"
        return "opaque" if site.opaque else "eliminated"

    def _left_out(self) -> Iterator[LedgerLine]:
        """What was never drafted: sites and terms, by their names without iterations, and arguments."""
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


def _size_bytes(draft: Draft) -> int:
    return 0 if draft.observation is None else draft.observation.size_bytes


def _flows(family: str) -> bool:
    """Whether a family holds what flows back in the run of the whole batch, which is what is looked into further."""
    return naming.is_gradient(family) and family != naming.EXAMPLE_GRAD


def _nonfinite(record: Record) -> bool:
    return bool(record.stats.get("nan") or record.stats.get("inf"))
