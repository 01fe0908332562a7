"""Defines the manifest: the contents and the provenance of a dump, stored as one JSON document inside the file."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from gradscope.dump.manifest import operation_facts
from gradscope.dump.manifest.reasons import PHRASES
from gradscope.dump.record import Json, Reason, Record, TensorFacts, fields_of
from gradscope.naming.summary import Cell, Summary
from gradscope.naming.wording import counted

#: The version of the manifest. It grows where an older gradscope cannot read what is written: 0.1.0, which reads
#: version 1, refuses a key that it does not know.
SCHEMA: Final = 2

#: The versions that are read: all keys of the older ones are among the newest one's.
SCHEMAS_READ: Final = (1, SCHEMA)

MEMBER: Final = "__gradscope__.json"

#: The statistics in a dump: *core* are those that a compiled step computes, *full* those of tensors, or on request.
Tier: TypeAlias = Literal["core", "full"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A `Stored` has the location of a tensor's bytes in the file; of a tensor in several shards, that of the first.

    Attributes:
        member: The zip member's full name, `.npy` included.
        dtype: NumPy's descriptor of the stored type, `<f4`, `|V2`.
        crc32: CRC-32 of the complete member, header included, as in the zip directory.
        offset: File offset of the first byte of array data, a multiple of 64.
        size_bytes: Number of bytes of array data, of all shards.
    """

    member: str
    dtype: str
    crc32: int
    offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry(TensorFacts):
    """An `Entry` is the manifest's description of one record.

    Attributes:
        stored: Location of the tensor's bytes in the file; None where the file has no tensor for it.
    """

    stored: Stored | None = None

    @classmethod
    def of(cls, record: Record, stored: Stored | None = None) -> Entry:
        """Returns the entry of a record and of the location of its tensor."""
        return cls(**fields_of(TensorFacts, record), stored=stored)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A `Layer` is one call of a layer of the model.

    Attributes:
        path: The layer's path, with its occurrence (`#2`) and iterations (`[3]`).
        index: Execution index of its first equation.
        parent: Path of the layer around it; None at the top.
        source: `file:line` of its first equation in the user's code.
        primitive: The primitive of a leaf layer that consists of one; None otherwise.
        operation: Whether it is an operation: one equation, named by its primitive and not by a scope.
        params: Names of the parameters that its equations use, in order of use.
        elementwise: Of those, the ones that signals are multiplied by, added to or compared with, and not mixed by.
        inputs: Names of the values that it reads: of activations where they have names, of inputs otherwise.
        outputs: Names of its activation entries.
        sources: Keys of the nearest values and parameters that its outputs are computed from, where not those above.
        narrowest: The floating-point dtype of the fewest digits in which it computes, where these are fewer than those
            of float32; None otherwise, and where that is not known.
        rms: `in`, `out`, `grad_in`, `grad_out`: root mean squares of all its inputs, outputs and their gradients.
        elements: Number of those elements, by the same names; needed to merge the layers of several processes.
    """

    path: str
    index: int
    parent: str | None = None
    source: str | None = None
    primitive: str | None = None
    operation: bool = False
    params: tuple[str, ...] = ()
    elementwise: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    narrowest: str | None = None
    rms: Mapping[str, float] = field(default_factory=dict[str, float])
    elements: Mapping[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerLine:
    """A `LedgerLine` is a site whose activation or gradient is not in the dump, and the reason."""

    name: str
    family: str
    reason: Reason
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Ledger:
    """A `Ledger` counts the captured floating-point sites, and has a line with the reason for each that is missing."""

    captured: int = 0
    missing: tuple[LedgerLine, ...] = ()

    def __repr__(self) -> str:
        return self.summary().one_line("Ledger")

    def __str__(self) -> str:
        return self.summary().text()

    def _repr_html_(self) -> str:
        return self.summary().html()

    def summary(self) -> Summary:
        """Returns the number of sites by reason."""
        counts = self.counts()
        line = ", ".join(f"{number:,} {reason}" for reason, number in counts.items())
        rows = tuple((reason, number, PHRASES.get(reason)) for reason, number in counts.items())
        return Summary(line=line, headings=("reason", "sites", "meaning"), rows=rows)

    def unseen(self) -> tuple[LedgerLine, ...]:
        """Returns the lines of values that the run could have captured, and that the user did not exclude."""
        return tuple(line for line in self.missing if line.reason in ("opaque", "forward-only"))

    def counts(self) -> dict[str, int]:
        """Returns the number of sites by reason, `captured` first; reasons that do not occur are left out."""
        counts = {"captured": self.captured}
        for line in self.missing:
            counts[line.reason] = counts.get(line.reason, 0) + 1
        return counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """A `Cause` is the reason why one gradient is zero.

    Attributes:
        family: The gradient's family.
        name: Its name.
        why: The reason, as a clause.
        rounding: Whether it is zero but for rounding, as the loss does not change with the value, and not exactly.
    """

    family: str
    name: str
    why: str
    rounding: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Examples:
    """`Examples` state whether the mean or the sum of the per-example gradients is the gradient of the batch.

    It is where the loss is a mean or a sum over examples. Where it is not, as with a normalisation over the batch, the
    examples are *coupled*: no combination of the per-example gradients is the gradient of the batch.

    Attributes:
        count: Number of examples.
        combined_by: The combination of their gradients that is closest to the batch's gradient.
        rel_l2: Its relative l2 distance over all parameters; inf where an element is finite in only one of the two.
        coupled: Whether that distance is larger than rounding explains.
    """

    count: int
    combined_by: Literal["mean", "sum"]
    rel_l2: float
    coupled: bool

    @property
    def sentence(self) -> str:
        """The result as an English sentence."""
        of_each = f"the {self.combined_by} of the gradients of {self.count} examples"
        what, error = "the batch's gradient", f"rel_l2 {self.rel_l2:.2g}"
        if self.coupled:
            return f"the examples are coupled in this loss: {of_each}, each alone, is not {what} ({error})"
        return f"{of_each} is {what} ({error})"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """`RunFacts` are the facts of a run: everything in a manifest but its entries.

    Attributes:
        layers: The layer tree in execution order.
        ledger: The missing values, and why each is missing.
        causes: The reasons why gradients are zero, exactly or but for rounding, as far as they were found.
        loss: The loss; None in a foreign file, or where the run failed before it was computed.
        loss_sources: The keys that the loss is next computed from, of layers' outputs and what code behind them reads.
        complete: Whether the run that wrote the dump succeeded.
        tier: `full` where every statistic was computed, `core` where only those of a compiled step were.
        provenance: Versions, device, precision, seed and hashes, which may explain a difference between two dumps.
        self_check: `max_rel_l2`, `bit_equal`, `total` and more of a self-check; None where none ran.
        examples: The relation of the per-example gradients to the batch's; None where there are none.
        timings: Seconds by phase.
        origins: The operations in which NaNs and infinities arose, as far as they were found.
        saturations: The bounded functions inside layers of which more than a tenth is at a limit.
        broadcasts: The operations of the loss that pair every example of the batch with every other by a broadcast.
        out_of_bounds: The look-ups by indices beyond what they look up.
        step_functions: The step functions at which the gradients of tensors end that have another one by reductions.
        softmax_uses: The softmaxes whose shares weight along another axis than theirs, or leave out positions, and
            those of a loss that are over the examples.
        clips: The clips by two numbers of which more than a tenth is at a limit.
        random_masks: The random masks inside the model that make more than 0.8 of their elements zero.
        rectified_logits: The rectifiers whose results are the logits of the loss.
        mesh: The axes of the meshes that the program is run on, each with its number of devices; empty without one.
        shard_axes: Those of them by which the shards of a `shard_map` are numbered, the last one fastest.
        collectives: The operations by which devices exchange values in the forward pass, in execution order.
        note: One line about the file ("not written by gradscope", the error that ended the run); "" for none.
    """

    layers: tuple[Layer, ...] = ()
    ledger: Ledger = field(default_factory=Ledger)
    causes: tuple[Cause, ...] = ()
    loss: float | None = None
    loss_sources: tuple[str, ...] = ()
    complete: bool = True
    tier: Tier = "full"
    provenance: Mapping[str, Json] = field(default_factory=dict[str, Json])
    self_check: Mapping[str, Json] | None = None
    examples: Examples | None = None
    timings: Mapping[str, float] = field(default_factory=dict[str, float])
    origins: tuple[operation_facts.Origin, ...] = ()
    saturations: tuple[operation_facts.Saturation, ...] = ()
    broadcasts: tuple[operation_facts.BatchBroadcast, ...] = ()
    out_of_bounds: tuple[operation_facts.OutOfBounds, ...] = ()
    step_functions: tuple[operation_facts.StepFunction, ...] = ()
    clips: tuple[operation_facts.Clip, ...] = ()
    random_masks: tuple[operation_facts.RandomMask, ...] = ()
    rectified_logits: tuple[operation_facts.RectifiedLogits, ...] = ()
    softmax_uses: tuple[operation_facts.SoftmaxUse, ...] = ()
    mesh: Mapping[str, int] = field(default_factory=dict[str, int])
    shard_axes: tuple[str, ...] = ()
    collectives: tuple[operation_facts.Collective, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Manifest(RunFacts):
    """A `Manifest` describes a dump: the facts of its run, and an entry for each record.

    Attributes:
        entries: Every record in the order written.
        schema: Version of the manifest, as it is written; version 1, of gradscope 0.1.0, is read, too.
    """

    entries: tuple[Entry, ...]
    schema: int = SCHEMA

    def __repr__(self) -> str:
        return self.summary().one_line("Manifest")

    def __str__(self) -> str:
        return self.summary().text()

    def _repr_html_(self) -> str:
        return self.summary().html()

    def summary(self) -> Summary:
        """Returns the number and the size of the tensors of each family."""
        tensors = [entry for entry in self.entries if entry.absent is None and entry.alias_of is None]
        return Summary(
            line=f"{counted(len(tensors), 'tensor')}, loss {'none' if self.loss is None else f'{self.loss:.6g}'}",
            headings=("family", "tensors", "elements", "not finite"),
            rows=tuple(_family_row(family, tensors) for family in dict.fromkeys(each.family for each in tensors)),
        )

    @classmethod
    def of(cls, entries: Iterable[Entry], facts: RunFacts) -> Manifest:
        """Returns the manifest of a dump with some entries of a run; `facts` may be another manifest."""
        return cls(entries=tuple(entries), **fields_of(RunFacts, facts))


def _family_row(family: str, tensors: Sequence[Entry]) -> tuple[Cell, ...]:
    entries = [each for each in tensors if each.family == family]
    bad = sum(bool(entry.stats.get("nan") or entry.stats.get("inf")) for entry in entries)
    return family, len(entries), sum(math.prod(entry.shape) for entry in entries), bad
