"""A capture session turns a run into the records of a dump, and the facts that are stored with them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain

import numpy as np

from gradscope import naming
from gradscope.capturing.execution.order import ExecutionOrder
from gradscope.capturing.execution.run import Run
from gradscope.capturing.explain.nonfinite.nonfinite_flags import KnownFlags, flag_of
from gradscope.capturing.explain.zeros.rounding_zeros import Gradient
from gradscope.capturing.explain.zeros.zero_gradients import Zero, causes_of
from gradscope.capturing.records.example_gradients import ExampleGradients, pending_examples
from gradscope.capturing.records.layer_tree import LayerTree
from gradscope.capturing.records.measure import Measured, Reading
from gradscope.capturing.records.pending_tensors import PendingTensor, pending_tensors
from gradscope.capturing.records.prefetch import Ahead, in_order
from gradscope.capturing.records.run_ledger import RunLedger, flows
from gradscope.capturing.records.saturations import attentions_of, clips_of, random_masks_of, saturations_of
from gradscope.capturing.records.term_records import pending_terms
from gradscope.dump.manifest.manifest import Cause, RunFacts
from gradscope.dump.manifest.operation_facts import Clip, RandomMask, Saturation, SoftmaxUse
from gradscope.dump.record import Record
from gradscope.stats.columns import is_all_zero
from gradscope.tracing.jaxpr.frames import ValueKey
from gradscope.tracing.jaxpr.iterations import ValueAt
from gradscope.tracing.lookup.batch_broadcasts import batch_broadcasts
from gradscope.tracing.lookup.collectives import collectives, mesh_axes, shard_axes
from gradscope.tracing.lookup.functions.classes_over_examples import classes_over_examples
from gradscope.tracing.lookup.functions.rectified_logits import rectified_logits
from gradscope.tracing.lookup.functions.softmax_products import softmax_uses
from gradscope.tracing.lookup.step_functions import step_functions

#: How far statistics are ahead of what is prepared for storage, and that of the writer: tensors on the host at a time,
#: in addition to those on the device.
AHEAD = Ahead(batches=3, batch_items=64, batch_bytes=4 << 20)
AHEAD_OF_WRITER = Ahead(batches=2, batch_items=64, batch_bytes=4 << 20)


class Session:
    """A `Session` yields the records of a run one by one, and has the facts of the run after the last.

    Args:
        run: The run.
        reading: How observations become statistics.
        further: Runs of the same loss that observe more of it, each started after the last record of the one before.

    Attributes:
        nonfinite: Whether the loss or a gradient yielded so far has a NaN or an infinity. A value that has one may
            be meant so, as a mask is.
        zeros: The gradients yielded so far that are exactly zero.
        gradients: The others, as far as they are finite.
        flags: Which values and gradients yielded so far are not finite, where the loss is what was differentiated.
    """

    def __init__(self, run: Run, reading: Reading, further: Iterable[Run] = ()) -> None:
        self._run = run
        self._further = further
        self._reading = reading
        self._order = ExecutionOrder.of_trace(run.trace)
        self._tree = LayerTree(run.trace, run.spec, self._order)
        self._ledger = RunLedger(run)
        self.nonfinite = not math.isfinite(self.loss() or 0.0)
        self.zeros: list[Zero] = []
        self.gradients: list[Gradient] = []
        self.flags = KnownFlags()
        self._flowing: set[ValueKey] = set()
        self._saturations: list[Saturation] = []
        self._clips: list[Clip] = []
        self._masks: list[RandomMask] = []
        self._attentions: list[SoftmaxUse] = []

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
        """Returns the run, without the tensors whose records have been yielded."""
        return self._run

    def _records_of(self, run: Run) -> Iterator[Record]:
        self._saturations += saturations_of(run, self._order)
        self._clips += clips_of(run, self._order)
        self._masks += random_masks_of(run, self._order)
        self._attentions += attentions_of(run)
        return self._measured(chain(pending_tensors(run, self._order), pending_terms(run, self._order)))

    def example_records(self, gradients: ExampleGradients, count: int) -> Iterator[Record]:
        """Yields the records of the gradients of each of so many examples, which come after those of the run."""
        return self._measured(pending_examples(self._run, self._order, gradients, count))

    def _measured(self, pieces: Iterable[PendingTensor]) -> Iterator[Record]:
        measured = in_order(self._reading.measured, map(_under_way, pieces), ahead=AHEAD, size_of=_size_bytes)
        for each in in_order(self._kept, measured, ahead=AHEAD_OF_WRITER, size_of=_measured_bytes):
            self._tree.note(each.pending, each.power)
            for record in each.records:
                self._ledger.add(each.pending, record)
                self._note(each.pending, record)
                yield record

    def _kept(self, measured: Measured) -> Measured:
        return measured._replace(records=tuple(map(self._reading.kept, measured.records)))

    def loss(self) -> float | None:
        """Returns the loss; None where it was not requested."""
        loss = self._run.observed.loss
        return None if loss is None or np.iscomplexobj(loss) else float(np.asarray(loss))

    def facts(self) -> RunFacts:
        """Returns the facts of the run: its layers, ledger and loss."""
        return RunFacts(
            layers=self._tree.layers(),
            ledger=self._ledger.ledger(),
            loss=self.loss(),
            loss_sources=() if self.loss() is None else self._tree.loss_sources(),
            broadcasts=() if self.loss() is None else batch_broadcasts(self._run.trace),
            step_functions=() if self.loss() is None else step_functions(self._run.trace),
            saturations=tuple(sorted(self._saturations, key=lambda saturation: saturation.index)),
            rectified_logits=() if self.loss() is None else rectified_logits(self._run.trace),
            softmax_uses=() if self.loss() is None else tuple(self._softmax_uses()),
            clips=tuple(sorted(self._clips, key=lambda clip: clip.index)),
            mesh=mesh_axes(self._run.trace, self._run.arguments),
            shard_axes=shard_axes(self._run.trace),
            collectives=collectives(self._run.trace, self._order.rank_between),
            random_masks=tuple(sorted(self._masks, key=lambda mask: mask.index)),
        )

    def _softmax_uses(self) -> Iterator[SoftmaxUse]:
        yield from softmax_uses(self._run.trace)
        yield from dict.fromkeys(self._attentions)
        yield from classes_over_examples(self._run.trace)

    def causes(self, most_bytes: int) -> tuple[Cause, ...]:
        """Returns why gradients are exactly zero; if any is, the loss is run once more to find out.

        Args:
            most_bytes: The most bytes that may be observed.

        Raises:
            ModelError: The loss failed.
        """
        return causes_of(self._run, self.zeros, self._flowing, most_bytes)

    def _note(self, pending: PendingTensor, record: Record) -> None:
        """Records whether a record is not finite, or is a gradient that is exactly zero."""
        self._note_flag(pending, record)
        if not flows(record.family):
            return
        self.nonfinite |= bool(record.stats.get("nan") or record.stats.get("inf"))
        value = pending.origin.value
        if not isinstance(value, ValueKey) or record.absent or record.alias_of or record.shard:
            return
        iteration, rms = pending.origin.iteration, record.stats.get("rms")
        if is_all_zero(record.stats):
            self.zeros.append(Zero(family=record.family, name=record.name, value=value, iteration=iteration))
        else:
            self._flowing.add(value)
            if isinstance(rms, float | int) and not isinstance(rms, bool):
                self.gradients.append(
                    Gradient(
                        family=record.family, name=record.name, value=value, iteration=iteration, rms=float(rms),
                        size=math.prod(record.shape),
                    )
                )  # fmt: skip

    def _note_flag(self, pending: PendingTensor, record: Record) -> None:
        value, nan, inf = pending.origin.value, record.stats.get("nan"), record.stats.get("inf")
        if not self._run.plan.is_of_loss or not isinstance(value, ValueKey) or record.alias_of or record.shard:
            return
        if isinstance(nan, int) and isinstance(inf, int) and record.family != naming.EXAMPLE_GRAD:
            flags = self.flags.gradients if flows(record.family) else self.flags.values
            flags[ValueAt(value, pending.origin.iteration)] = flag_of(nan, inf)


def _under_way(pending: PendingTensor) -> PendingTensor:
    """Returns a pending tensor whose elements are on their way to the host."""
    observation = pending.observation
    return pending if observation is None else replace(pending, observation=observation.under_way())


def _size_bytes(pending: PendingTensor) -> int:
    return 0 if pending.observation is None else pending.observation.size_bytes


def _measured_bytes(measured: Measured) -> int:
    return _size_bytes(measured.pending)
