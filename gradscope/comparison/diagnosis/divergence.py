"""`first_divergence` returns the first rows over tolerance, `blame_of` their consequences and the layers at fault.

The first is that in the direction of computation: in execution order for values, in reverse order for gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gradscope.comparison.diagnosis.growth import FLAGGED
from gradscope.comparison.judging.rows import ComparisonRow
from gradscope.dump.manifest.json_text import as_float
from gradscope.dump.manifest.layer_graph import (
    NearestKeys,
    Sources,
    consequences,
    inverted,
    readers_of,
    results_of,
    sources_among,
    sources_of,
    unclear_keys,
)
from gradscope.dump.manifest.manifest import Layer
from gradscope.naming import (
    ACTIVATION,
    ACTIVATION_GRAD,
    AUX,
    INPUT_GRAD,
    PARAM,
    TENSOR,
    is_gradient,
    key_of,
    split_key,
)

#: The families with a direction. Tensors of a foreign file have none and count as computed in the file's order.
FORWARD: Final = (ACTIVATION, TENSOR)
BACKWARD: Final = (ACTIVATION_GRAD,)

#: The statuses of names that only the reference has, and that only the candidate has.
_ALONE: Final = ("missing", "extra")

#: How many times an error may have grown that began within its tolerance.
_COMPARABLE: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """Divergence stores the first row over tolerance of each direction; None where it agrees or was not compared."""

    forward: ComparisonRow | None = None
    backward: ComparisonRow | None = None

    @property
    def backward_only(self) -> bool:
        """Whether only the backward pass has rows over tolerance."""
        return self.forward is None and self.backward is not None


def first_divergence(rows: Sequence[ComparisonRow]) -> Divergence:
    """Returns the first divergence, forward in execution order and backward in reverse order.

    Auxiliary outputs, such as the new state of a batch norm, come after everything that the loss is computed from, and
    those whose difference is explained, as by another divisor of a variance, after those of which nothing is known.

    Args:
        rows: All rows in the reference's order, which decides between rows of one execution index.
    """
    forward = [row for row in rows if row.family in (*FORWARD, AUX) and row.status == "different"]
    backward = [row for row in rows if row.family in BACKWARD and row.status == "different"]
    return Divergence(
        forward=min(forward, key=lambda row: (row.family == AUX and 1 + bool(row.likely), row.index), default=None),
        backward=max(backward, key=lambda row: row.index, default=None),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Blame:
    """Blame stores where a divergence comes from and leads to; empty where a dump has no layers.

    Attributes:
        forward: Keys that are computed from the first value over tolerance.
        backward: Keys that are computed from the first gradient over tolerance.
        makers: Paths of the layers that computed that gradient: the innermost that read its value.
        part: The part of a layer that computed the first value over tolerance, where that is named by the layer.
        origin: The row within tolerance in which the error begins; None where it begins at the divergence.
        unpaired: The rows without a counterpart from which the first value over tolerance is computed, not only through
            values that agree.
        unpaired_gradients: The same of the first gradient over tolerance.
        suspects: Those of them that may have made the first divergence, the likeliest first; none where it is made by
            the layer that computes it.
        made_before: Whether the tensors show that a suspect made it, and not the layer that computes it.
        unrecorded: What its layer reads of which neither program has an entry, in words; "" where that may agree.
        params: The names of the parameters that may have made the first value over tolerance: it is computed from them
            not only through values that agree. None where that is not known.
    """

    forward: frozenset[str] = frozenset()
    backward: frozenset[str] = frozenset()
    makers: tuple[str, ...] = ()
    part: str = ""
    origin: ComparisonRow | None = None
    unpaired: tuple[ComparisonRow, ...] = ()
    unpaired_gradients: tuple[ComparisonRow, ...] = ()
    suspects: tuple[ComparisonRow, ...] = ()
    made_before: bool = False
    unrecorded: str = ""
    params: frozenset[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Program stores the layers of a dump, and by which keys they know the tensors of rows.

    Attributes:
        layers: The layers.
        owner: Returns the key of a row's owner in the dump, by which layers name values; "" where it has none.
    """

    layers: Sequence[Layer]
    owner: Callable[[ComparisonRow], str]


def blame_of(rows: Sequence[ComparisonRow], ref: Program, cand: Program) -> Blame:
    """Returns where the first divergence comes from, and what follows from it.

    Args:
        rows: All rows.
        ref: The program of the reference, or that of the candidate where the reference has no layers.
        cand: The program of the candidate.
    """
    divergence = first_divergence(rows)
    first = divergence.forward or divergence.backward
    if not ref.layers or first is None:
        return Blame()
    sources = sources_of(ref.layers)

    def following(row: ComparisonRow | None) -> frozenset[str]:
        return frozenset() if row is None else consequences(sources, ref.owner(row))

    backward = divergence.backward
    name = None if backward is None else ref.owner(backward).partition("/")[2]
    return Blame(
        forward=following(divergence.forward) | _of_loss_alone(rows, divergence.forward, ref.layers),
        backward=following(backward),
        makers=() if name is None else readers_of(ref.layers, name),
        part=_part(divergence.forward, ref),
        origin=_origin(rows, first, following, ref),
        unpaired=_unpaired(rows, divergence.forward, ref, cand),
        unpaired_gradients=_unpaired(rows, backward, ref, cand),
        params=_params_before(rows, divergence.forward, sources, ref),
    )


def _of_loss_alone(
    rows: Sequence[ComparisonRow], first: ComparisonRow | None, layers: Sequence[Layer]
) -> frozenset[str]:
    """Returns the gradients of inputs that no layer reads, such as labels: they follow from all that the loss reads."""
    read = {name for layer in layers for name in layer.inputs}
    names = (row.name for row in rows if row.family == INPUT_GRAD and row.name not in read)
    return frozenset() if first is None else frozenset(key_of(INPUT_GRAD, name) for name in names)


def _params_before(
    rows: Sequence[ComparisonRow], first: ComparisonRow | None, sources: Sources, program: Program
) -> frozenset[str] | None:
    """Returns the names of the parameters that a value is computed from, not only through values that agree."""
    if first is None:
        return None
    params = {program.owner(row): row.name for row in rows if row.family == PARAM}
    agreeing = {program.owner(row) for row in rows if row.status == "same" and row.compared}
    reached = sources_among(sources, program.owner(first), params, agreeing - params.keys())
    return frozenset(params[key] for key in reached)


def _part(first: ComparisonRow | None, program: Program) -> str:
    """Returns the name of the value that a divergence has another name for: that of the last part of a layer."""
    name = "" if first is None else program.owner(first).partition("/")[2]
    return name if first is not None and name.startswith(f"{first.name}/") else ""


def with_inputs_paired(rows: Sequence[ComparisonRow], ref: Program, cand: Program) -> tuple[ComparisonRow, ...]:
    """Returns the rows, those with an error of their own told apart by whether what they are computed from is paired.

    What only one dump has, and is not known to agree, may have made the error that a value has beyond its sources'.

    Args:
        rows: All rows.
        ref: The program of the reference, or that of the candidate where the reference has no layers.
        cand: The program of the candidate.
    """
    alone = {(row.status, key_of(row.family, row.name)) for row in rows if row.status in _ALONE and row.counts}
    if not alone:
        return tuple(rows)
    beside: set[int] = set()
    for status, program in zip(_ALONE, (ref, cand), strict=True):
        sources = sources_of(program.layers)
        paired = {program.owner(row) for row in rows if row.status not in _ALONE}
        unpaired = {key for each, key in alone if each == status} - paired
        behind = results_of(sources, unpaired, paired)
        for number, row in enumerate(rows):
            if as_float(row.metrics.get("growth", 0.0)) > FLAGGED and program.owner(row) in behind:
                beside.add(number)
    return tuple(
        replace(row, made_here=False, inputs_paired=False) if number in beside else row
        for number, row in enumerate(rows)
    )


def _origin(
    rows: Sequence[ComparisonRow],
    first: ComparisonRow,
    following: Callable[[ComparisonRow], frozenset[str]],
    program: Program,
) -> ComparisonRow | None:
    """Returns the first row within tolerance that made an error, and from which a divergence is computed."""
    error = as_float(first.metrics.get("rel_l2", math.inf))
    made = (
        row
        for row in rows
        if row.family == ACTIVATION and row.status == "same" and row.made_here
        # A much smaller error may be rounding, and the divergence has a cause of its own.
        and _COMPARABLE * as_float(row.metrics["rel_l2"]) >= error and program.owner(first) in following(row)
    )  # fmt: skip
    return min(made, key=lambda row: row.index, default=None)


def _unpaired(
    rows: Sequence[ComparisonRow], first: ComparisonRow | None, ref: Program, cand: Program
) -> tuple[ComparisonRow, ...]:
    """Returns the rows of the divergence's family without a counterpart that it is computed from.

    Those of which something else that is compared and agrees is computed are right, and are left out.
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
            sources = sources_of(program.layers)
            right = _borne_out(sources, alone, rows, first, program)
            before = sources_among(sources, program.owner(first), alone, agreeing | right)
            found += [row for key, row in alone.items() if key in before]
    return tuple(found)


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
    backward = first.family in BACKWARD
    graph = inverted({key: each for key, each in sources.items() if is_gradient(split_key(key)[0]) is backward})
    readers = NearestKeys(graph, errors)
    return frozenset(
        key
        for key in alone
        if any(_COMPARABLE * errors[each] < error for each in readers.behind(key) if each not in unclear)
    )
