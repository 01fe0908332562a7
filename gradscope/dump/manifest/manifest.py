"""The manifest: what a dump holds and where it comes from, as one JSON document inside the file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from gradscope.dump.record import Json, Reason, Record, TensorFacts, fields_of

SCHEMA: Final = 1
MEMBER: Final = "__gradscope__.json"

#: Which statistics a dump has: *core* is what a compiled step can carry, *full* is computed from the tensors.
Tier: TypeAlias = Literal["core", "full"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Where a tensor's bytes lie in the file; of one in the files of several processes, where its first part does.

    Attributes:
        member: The zip member's full name, `.npy` included.
        dtype: NumPy's descriptor of the stored type, `<f4`, `|V2`.
        crc32: CRC-32 of the whole member, header included, as the zip directory has it.
        offset: File offset of the first byte of array data, a multiple of 64.
        size_bytes: Number of bytes of array data, of all parts.
    """

    member: str
    dtype: str
    crc32: int
    offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry(TensorFacts):
    """One record as a dump remembers it.

    Attributes:
        stored: Where its bytes are in the file; None where the file holds no tensor for it.
    """

    stored: Stored | None = None

    @classmethod
    def of(cls, record: Record, stored: Stored | None = None) -> Entry:
        """What a dump remembers of a record."""
        return cls(**fields_of(TensorFacts, record), stored=stored)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer of the model: one call, in execution order.

    Attributes:
        path: Its layer path, occurrence included, iterations filled in.
        index: Execution index of its first equation.
        parent: Path of the layer around it; None at the top.
        source: `file:line` of its first equation in the user's code.
        primitive: Its one primitive, where a leaf has only one; None otherwise.
        operation: Whether it is an operation: one equation, known by its primitive and not by a scope.
        params: Names of the parameters its equations use, in order of use.
        inputs: Names of the values it reads: activation names where those are known, `input` names otherwise.
        outputs: Names of its activation entries.
        rms: `in`, `out`, `grad_in`, `grad_out`: root mean squares over the finite elements of all its inputs or outputs
            and of the gradients with respect to them; a name is absent where the layer has no such value.
        elements: Number of those elements, by the same names; what lets the layers of several processes be merged.
    """

    path: str
    index: int
    parent: str | None = None
    source: str | None = None
    primitive: str | None = None
    operation: bool = False
    params: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    rms: Mapping[str, float] = field(default_factory=dict[str, float])
    elements: Mapping[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerLine:
    """One site whose activation or gradient is not in the dump, and why."""

    name: str
    family: str
    reason: Reason
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """The account of every floating-point site: how many were captured, and each that was not with its reason."""

    captured: int = 0
    missing: tuple[LedgerLine, ...] = ()

    def unseen(self) -> tuple[LedgerLine, ...]:
        """What the run computed, or could have, and the dump lacks without the user's word."""
        return tuple(line for line in self.missing if line.reason in ("opaque", "forward-only"))

    def counts(self) -> dict[str, int]:
        """Number of sites by reason, `captured` first; reasons that do not occur are left out."""
        counts = {"captured": self.captured}
        for line in self.missing:
            counts[line.reason] = counts.get(line.reason, 0) + 1
        return counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The operation in which a NaN or an infinity first arose.

    Attributes:
        direction: `forward` where its result is not finite though its operands are; `backward` where the gradient that
            it passes to an operand is not finite though the gradient that it received is.
        name: The operation's path, or the argument that was not finite to begin with.
        why: What happened there, with the numbers in it; a sentence's predicate without a full stop.
        repair: What to do about it; "" where nothing general can be said.
        primitive: Its primitive; None for an argument.
        source: `file:line` in the user's code; None where unknown.
        iteration: Index per enclosing loop, outermost first.
        index: Where in the result, or in the operand's gradient, the first such element is.
        operands: The forward operands' values that belong to that element.
    """

    direction: Literal["forward", "backward"]
    name: str
    why: str
    repair: str = ""
    primitive: str | None = None
    source: str | None = None
    iteration: tuple[int, ...] = ()
    index: tuple[int, ...] = ()
    operands: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Why one gradient is exactly zero."""

    family: str
    name: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Examples:
    """How the gradients of the examples, each alone, combine to those of the batch.

    They do where the loss is a mean or a sum over examples. Where it is not, as behind a normalisation over the batch,
    the examples are *coupled*, and no combination of what each gives alone is the gradient of all together.

    Attributes:
        count: Number of examples.
        combined_by: What of their gradients comes closest to the batch's.
        rel_l2: How close, over all parameters together; inf where an element is finite in one of the two alone.
        coupled: Whether that is more than rounding.
    """

    count: int
    combined_by: Literal["mean", "sum"]
    rel_l2: float
    coupled: bool

    @property
    def sentence(self) -> str:
        """The same for a human."""
        error = f"rel_l2 {self.rel_l2:.2g}"
        if self.coupled:
            return (
                f"the examples are coupled in this loss: the {self.combined_by} of the gradients of {self.count} "
                f"examples, each alone, is not the batch's gradient ({error})"
            )
        return f"the {self.combined_by} of the gradients of {self.count} examples is the batch's gradient ({error})"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What is known of a run as a whole: everything in a manifest but its entries.

    Attributes:
        layers: The layer tree in execution order.
        ledger: What was left out and why.
        causes: Why gradients are exactly zero, for those of which it is known.
        loss: The loss; None in a foreign file or an incomplete dump that had not reached it.
        complete: Whether the run that wrote the dump ended well.
        tier: `full` when every statistic was computed, `core` when only a compiled step's.
        provenance: Versions, device, precision, seed, hashes: whatever may explain a difference between two dumps.
        self_check: `max_rel_l2`, `bit_equal`, `total` and more of a self-check; None when none ran.
        examples: How the gradients of the examples combine; None where there are none.
        timings: Seconds by phase.
        origins: Where NaNs and infinities arose, if any did and it was found out.
        note: One line about the file as a whole ("not written by gradscope", the error that cut it short); "" for none.
    """

    layers: tuple[Layer, ...] = ()
    ledger: Ledger = field(default_factory=Ledger)
    causes: tuple[Cause, ...] = ()
    loss: float | None = None
    complete: bool = True
    tier: Tier = "full"
    provenance: Mapping[str, Json] = field(default_factory=dict[str, Json])
    self_check: Mapping[str, Json] | None = None
    examples: Examples | None = None
    timings: Mapping[str, float] = field(default_factory=dict[str, float])
    origins: tuple[Origin, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest(RunFacts):
    """Everything a dump says about itself.

    Attributes:
        entries: Every record in the order written.
        schema: Version of the manifest.
    """

    entries: tuple[Entry, ...]
    schema: int = SCHEMA

    @classmethod
    def of(cls, entries: Iterable[Entry], facts: RunFacts) -> Manifest:
        """The manifest of a dump that holds some entries of a run; `facts` may be those of another manifest."""
        return cls(entries=tuple(entries), **fields_of(RunFacts, facts))
