"""Values and gradients are computed from what one program alone has: outside of their layer, or inside it."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gradscope.comparison.diagnosis.growth import FLAGGED
from gradscope.comparison.judging.judge import ALLOWED
from gradscope.comparison.judging.rows import ComparisonRow
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.json_text import as_float
from gradscope.dump.manifest.layer_graph import (
    NearestKeys,
    Sources,
    inverted,
    readers_of,
    results_of,
    sources_among,
    sources_of,
    unclear_keys,
)
from gradscope.dump.manifest.manifest import Entry, Layer
from gradscope.naming import ACTIVATION, ACTIVATION_GRAD, is_gradient, key_of, split_key
from gradscope.naming.paths import is_inside, layers_around

#: The statuses of names that only the reference has, and that only the candidate has.
_ALONE: Final = ("missing", "extra")

#: How far sums of the same elements in another order may be apart, relative to them.
_SUMMED: Final = 1e-6

#: How many times an error may have grown that began within its tolerance.
COMPARABLE: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Program stores the layers of a dump, and by which keys they know the tensors of rows.

    Attributes:
        layers: The layers.
        owner: Returns the key of a row's owner in the dump, by which layers name values; "" where it has none.
        entry: Returns the entry of a key of the dump; None where it is unknown.
    """

    layers: Sequence[Layer]
    owner: Callable[[ComparisonRow], str]
    entry: Callable[[str], Entry | None] = lambda _: None

    @classmethod
    def of(cls, dump: DumpSource, owner: Callable[[ComparisonRow], str]) -> Program:
        """Returns the program of a dump, without the layers of branches that were not taken, which made nothing.

        Args:
            dump: The dump.
            owner: Returns the key of a row's owner in it.
        """
        absent = {key for key in dump.keys() if dump.entry(key).absent == "not-executed"}  # noqa: SIM118
        keys = ((layer, [key_of(ACTIVATION, name) for name in layer.outputs]) for layer in dump.manifest.layers)
        layers = tuple(layer for layer, made in keys if absent.isdisjoint(made))
        return cls(layers=layers, owner=owner, entry=lambda key: dump.entry(key) if key else None)

    def moves_alone(self, one: str, other: str) -> bool:
        """Returns whether two tensors have the same elements, in another layout, as far as statistics tell.

        Args:
            one: The key of one.
            other: That of the other.
        """
        first, second = self.entry(one), self.entry(other)
        if first is None or second is None or first.stats.get("min") == first.stats.get("max"):
            return False
        exact = all(first.stats.get(name) == second.stats.get(name) for name in ("min", "max", "zeros"))
        sums = ([as_float(each.stats.get(name, math.nan)) for each in (first, second)] for name in ("l1", "l2"))
        return exact and all(math.isclose(*pair, rel_tol=_SUMMED) for pair in sums)


def parts_of(
    first: ComparisonRow | None, unpaired: Sequence[ComparisonRow], ref: Program, cand: Program
) -> Iterator[str]:
    """Yields the keys of the rows without a counterpart that are inside the layer which made a value or gradient.

    Args:
        first: The row of the value or gradient; None where there is none.
        unpaired: The rows without a counterpart that it is computed from.
        ref: The program of the reference.
        cand: The program of the candidate.
    """
    if first is None or not unpaired:
        return
    layers = _Makers(ref, cand).of(first)
    for row in unpaired:
        if is_inside(row.name, layers[row.status]):
            yield key_of(row.family, row.name)


def scopes_before(
    rows: Sequence[ComparisonRow], first: ComparisonRow, ref: Program, cand: Program
) -> tuple[ComparisonRow, ...]:
    """Returns the outputs of layers with parts, without a counterpart, that a norm reads.

    Where others are added up before a norm than in the other program, the code that does is inside of these. A kernel
    shows what its layer reads, which a function right before it may make: of a layer with one, there are none.

    Args:
        rows: All rows.
        first: The row of the value.
        ref: The program of the reference.
        cand: The program of the candidate.
    """
    programs, makers = dict(zip(_ALONE, (ref, cand), strict=True)), _Makers(ref, cand).of(first)
    own = [layer for status, each in programs.items() for layer in each.layers if layer.path in makers[status]]
    if not any({*layer.params[:1]} & {*layer.elementwise} for layer in own):  # the first of a norm is its scale
        return ()
    parents = {status: {layer.parent for layer in each.layers} for status, each in programs.items()}
    made = {
        status: {name for layer in each.layers if layer.path in parents[status] for name in layer.outputs}
        for status, each in programs.items()
    }
    # What stands further before it was read by others, which a move of a block changes and what is in it does not.
    read = {status: {name for layer in each.layers if layer.path in makers[status] for name in layer.inputs}
            for status, each in programs.items()}  # fmt: skip
    return tuple(
        row for row in unpaired_before(rows, first, ref, cand) if row.name in made[row.status] & read[row.status]
    )


class _Makers:
    """_Makers finds the layers that made a value in both programs, or the gradient with respect to it.

    Args:
        ref: The program of the reference.
        cand: The program of the candidate.
    """

    def __init__(self, ref: Program, cand: Program) -> None:
        self._programs: dict[str, Program] = dict(zip(_ALONE, (ref, cand), strict=True))
        self._around = {layer.parent for layer in ref.layers}

    def of(self, row: ComparisonRow) -> dict[str, Sequence[str]]:
        """Returns the paths of the layers by the status that rows of their program alone have.

        The counterpart of a layer with parts is a layer with parts as well, which may return what its last part does.

        Args:
            row: The row of the value or gradient.
        """
        names = {status: program.owner(row).partition("/")[2] for status, program in self._programs.items()}
        if row.family == ACTIVATION_GRAD:
            return {status: readers_of(self._programs[status].layers, name) for status, name in names.items()}
        found = {
            status: [layer.path for layer in self._programs[status].layers if name in layer.outputs]
            for status, name in names.items()
        }
        missing, extra = _ALONE
        innermost = found[missing][-1:]
        return {missing: innermost, extra: found[extra] if self._around.intersection(innermost) else found[extra][-1:]}


def with_what_is_read(rows: Sequence[ComparisonRow], ref: Program, cand: Program) -> tuple[ComparisonRow, ...]:
    """Returns the rows, those with an error of their own told apart by what is known of what their layers read.

    Args:
        rows: All rows.
        ref: The program of the reference, or that of the candidate where the reference has no layers.
        cand: The program of the candidate.
    """
    stated = {status: {layer.path for layer in program.layers if not layer.sources}
              for status, program in zip(_ALONE, (ref, cand), strict=True)}  # fmt: skip
    made_by = _Makers(ref, cand)

    def is_stated(row: ComparisonRow) -> bool:
        # The layer around others states what these read, and not what its last step does.
        makers = made_by.of(row)
        return all(not paths or paths[-1] in stated[status] for status, paths in makers.items())

    return tuple(
        replace(row, reads_recorded=row.explained or is_stated(row)) if row.made_here else row
        for row in _with_inputs_paired(rows, ref, cand)
    )


def _with_inputs_paired(rows: Sequence[ComparisonRow], ref: Program, cand: Program) -> tuple[ComparisonRow, ...]:
    """Returns the rows, those with an error of their own told apart by whether what they are computed from is paired.

    What only one dump has, and is not known to agree, may have made the error that a value has beyond its sources'.
    """
    alone = {(row.status, key_of(row.family, row.name)) for row in rows if row.status in _ALONE and row.counts}
    if not alone:
        return tuple(rows)
    beside: set[int] = set()
    made_by = _Makers(ref, cand)
    for status, program in zip(_ALONE, (ref, cand), strict=True):
        sources = sources_of(program.layers)
        paired = {program.owner(row) for row in rows if row.status not in _ALONE}
        unpaired = {key for each, key in alone if each == status} - paired
        behind = results_of(sources, unpaired, paired)
        around = {layer for key in unpaired for layer in layers_around(split_key(key)[1])}
        for number, row in enumerate(rows):
            owner = program.owner(row)
            if as_float(row.metrics.get("growth", 0.0)) <= FLAGGED or owner not in behind:
                continue
            makers = around.intersection(made_by.of(row)[status])
            before = sources_among(sources, owner, unpaired, paired) if makers else ()
            if not makers or not all(is_inside(split_key(key)[1], makers) for key in before):
                beside.add(number)
    return tuple(
        replace(row, made_here=False, inputs_paired=False) if number in beside else row
        for number, row in enumerate(rows)
    )


def unpaired_before(
    rows: Sequence[ComparisonRow], first: ComparisonRow | None, ref: Program, cand: Program
) -> tuple[ComparisonRow, ...]:
    """Returns the rows of a divergence's family without a counterpart that it is computed from.

    Those of which something else that is compared and agrees is computed are right, and are left out.

    Args:
        rows: All rows.
        first: The divergence; None where there is none.
        ref: The program of the reference.
        cand: The program of the candidate.
    """
    if first is None:
        return ()
    found: list[ComparisonRow] = []
    for status, program in zip(_ALONE, (ref, cand), strict=True):
        alone = {
            key_of(row.family, row.name): row
            for row in rows
            if row.status == status and row.counts and row.family == first.family
        }
        if alone and program.layers:
            agreeing = {program.owner(row) for row in rows if row.status == "same" and row.compared} - alone.keys()
            # A value that is known to be a function of one that both programs have agrees, too.
            agreeing |= {key_of(row.family, row.name) for row in rows if row.status == status and _is_redundant(row)}
            sources = sources_of(program.layers)
            right = _borne_out(sources, alone, rows, first, program)
            before = sources_among(sources, program.owner(first), alone, agreeing | right)
            # A gradient that is the first one's in another layout is no other place.
            place = program.owner(first) if is_gradient(first.family) else ""
            found += [row for key, row in alone.items() if key in before and not program.moves_alone(key, place)]
    return tuple(found)


def _is_redundant(row: ComparisonRow) -> bool:
    """Returns whether a value that one program alone has is known to agree; of a gradient, only its value is."""
    return row.family == ACTIVATION and not row.counts and not row.why.endswith(ALLOWED)


def _borne_out(
    sources: Sources,
    alone: Collection[str],
    rows: Sequence[ComparisonRow],
    first: ComparisonRow,
    program: Program,
) -> frozenset[str]:
    """Returns those of some values of one program that are right, as what is computed next from them agrees.

    Args:
        sources: What each value is computed from.
        alone: The values, which have no counterpart.
        rows: All rows.
        first: The first divergence.
        program: The program.
    """
    error = as_float(first.metrics.get("rel_l2", math.inf))
    errors: dict[str, float] = {}
    for row in rows:
        if row.compared and (owner := program.owner(row)):
            # What is zero but for rounding agrees whatever it is computed from, and a small error may be a trace.
            trace = as_float(row.metrics.get("rel_l2", 0.0)) if row.status == "same" else math.inf
            errors[owner] = max(errors.get(owner, 0.0), trace if row.needed or not trace else math.inf)
    unclear = unclear_keys(program.layers, errors)
    # Gradients are computed from every value that is read beside theirs, and may depend on none of those.
    backward = first.family == ACTIVATION_GRAD
    graph = inverted({key: each for key, each in sources.items() if is_gradient(split_key(key)[0]) is backward})
    readers = NearestKeys(graph, errors)
    return frozenset(
        key
        for key in alone
        if any(COMPARABLE * errors[each] < error for each in readers.behind(key) if each not in unclear)
    )
