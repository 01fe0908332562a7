"""`first_divergence` returns the first rows over tolerance, `blame_of` their consequences and the layers at fault.

The first is that in the direction of computation: in execution order for values, in reverse order for gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

from gradscope.comparison.diagnosis.unpaired_sources import (
    COMPARABLE,
    Program,
    parts_of,
    scopes_before,
    unpaired_before,
)
from gradscope.comparison.judging.rows import ComparisonRow
from gradscope.dump.manifest.json_text import as_float
from gradscope.dump.manifest.layer_graph import (
    NearestKeys,
    Sources,
    consequences,
    readers_of,
    sources_among,
    sources_of,
)
from gradscope.dump.manifest.manifest import Layer
from gradscope.naming import (
    ACTIVATION,
    ACTIVATION_GRAD,
    AUX,
    INPUT,
    INPUT_GRAD,
    PARAM,
    PARAM_GRAD,
    TENSOR,
    key_of,
    split_key,
)

#: The families with a direction. Tensors of a foreign file have none and count as computed in the file's order.
FORWARD: Final = (ACTIVATION, TENSOR)
BACKWARD: Final = (ACTIVATION_GRAD,)


#: How the clause begins about a layer that reads other values than its counterpart.
READS: Final = "reads "

#: How it begins about one that reads a value whose axes are flattened in another order.
_FLATTENS: Final = "flattens "


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
        right: Those of them that are shown to return what the reference's return.
        code_before: Those of them before which there is code without an entry that may have computed it.
        of_makers: Keys of the gradients of the parameters that they use themselves, and that the code before them
            uses: what is wrong there may make these wrong, too.
        by_loss: Whether the loss reads the value, too, and may have computed it.
        part: The part of a layer that computed the first value over tolerance, where that is named by the layer.
        origin: The row within tolerance in which the error begins; None where it begins at the divergence.
        unpaired: The rows without a counterpart from which the first value over tolerance is computed, not only through
            values that agree.
        unpaired_gradients: The same of the first gradient over tolerance.
        parts: The keys of those of either that are inside the layer which made the value or gradient, as iterations of
            a loop are that it was rewritten as: nothing is before it that they are not a part of.
        suspects: Those of them that may have made the first divergence, the likeliest first; none where it is made by
            the layer that computes it.
        made_before: Whether the tensors show that a suspect made it, and not the layer that computes it.
        unrecorded: What its layer reads of which neither program has an entry, in words; "" where that may agree.
        params: The names of the parameters that may have made the first value over tolerance: it is computed from them
            not only through values that agree. None where that is not known.
        turned: The names of the parameters that have another layout than most of the candidate's.
        beside: The keys of values that may differ by the step that made the first value over tolerance: it has no
            entry, and reads what they are computed from next, too. Of gradients where values agree.
    """

    forward: frozenset[str] = frozenset()
    backward: frozenset[str] = frozenset()
    makers: tuple[str, ...] = ()
    right: frozenset[str] = frozenset()
    code_before: tuple[str, ...] = ()
    of_makers: frozenset[str] = frozenset()
    by_loss: bool = False
    part: str = ""
    origin: ComparisonRow | None = None
    unpaired: tuple[ComparisonRow, ...] = ()
    unpaired_gradients: tuple[ComparisonRow, ...] = ()
    parts: frozenset[str] = frozenset()
    suspects: tuple[ComparisonRow, ...] = ()
    made_before: bool = False
    unrecorded: str = ""
    params: frozenset[str] | None = None
    turned: frozenset[str] = frozenset()
    beside: frozenset[str] = frozenset()


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
    unpaired, gradients = (
        () if row is None else _alone_before(rows, row, ref, cand) for row in (divergence.forward, backward)
    )
    makers = () if backward is None else _makers(rows, backward, ref)
    # The gradient of a value that only the reference has may be wrong already.
    before = (path for row in gradients if row.status == "missing" for path in _makers(rows, row, ref))
    return Blame(
        forward=following(divergence.forward) | _of_loss_alone(rows, divergence.forward, ref.layers),
        backward=following(backward),
        makers=makers,
        of_makers=_used_by({*makers, *before}, ref.layers),
        part=_part(rows, divergence.forward, ref),
        origin=_origin(rows, first, following, ref),
        unpaired=unpaired,
        unpaired_gradients=gradients,
        parts=frozenset(
            (*parts_of(divergence.forward, unpaired, ref, cand), *parts_of(backward, gradients, ref, cand))
        ),
        params=_params_before(rows, divergence.forward, sources, ref),
        beside=_beside(rows, first, sources, ref),
    )


def _alone_before(
    rows: Sequence[ComparisonRow], first: ComparisonRow, ref: Program, cand: Program
) -> tuple[ComparisonRow, ...]:
    """Returns the rows without a counterpart that may have made a difference, before the value or gradient has it."""
    if not first.explained:
        return unpaired_before(rows, first, ref, cand)
    return scopes_before(rows, first, ref, cand) if first.likely.startswith(READS) else ()


def _makers(rows: Sequence[ComparisonRow], first: ComparisonRow, program: Program) -> tuple[str, ...]:
    """Returns the paths of the layers that computed a gradient.

    That is the module around the layer where the gradient of what the module returns agrees, which in the reference is
    one with it: the candidate's module computes something of what the layer returns.
    """
    key = program.owner(first)
    agreeing = (row for row in rows if row.family == ACTIVATION_GRAD and row.status == "same" and row.compared)
    around = [row.name for row in agreeing if first.name.startswith(f"{row.name}/") and program.owner(row) == key]
    return (max(around, key=len),) if around else readers_of(program.layers, key.partition("/")[2])


def _used_by(makers: Collection[str], layers: Sequence[Layer]) -> frozenset[str]:
    """Returns the keys of the gradients of the parameters that layers use themselves, or the code before them uses."""
    inside = {(layer.parent, name) for layer in layers if layer.parent in makers for name in layer.params}
    some = [layer for layer in layers if layer.path in makers]
    own = {name for layer in some for name in layer.params if (layer.path, name) not in inside}
    before = {name for layer in some for family, name in map(split_key, layer.sources) if family == PARAM}
    return frozenset(key_of(PARAM_GRAD, name) for name in own | before)


def _of_loss_alone(
    rows: Sequence[ComparisonRow], first: ComparisonRow | None, layers: Sequence[Layer]
) -> frozenset[str]:
    """Returns the gradients of what no layer reads, as labels and the weights of an output layer without a scope.

    They follow from all that the loss reads.
    """
    if first is None:
        return frozenset()
    read = {INPUT_GRAD: {name for layer in layers for name in layer.inputs},
            PARAM_GRAD: {name for layer in layers for name in layer.params}}  # fmt: skip
    alone = (row for row in rows if row.family in read and row.name not in read[row.family])
    return frozenset(key_of(row.family, row.name) for row in alone)


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


def _beside(rows: Sequence[ComparisonRow], first: ComparisonRow, sources: Sources, program: Program) -> frozenset[str]:
    """Returns the keys of values, or of gradients, that a step may have made that made the first divergence, too."""
    known = first.explained or (first.made_here and first.reads_recorded)
    backward = first.family == ACTIVATION_GRAD
    if known and not first.likely.startswith(_FLATTENS):
        return frozenset()
    families = (ACTIVATION_GRAD,) if backward else (ACTIVATION, INPUT)
    compared = (row for row in rows if row.family in families and row.compared)
    nearest = NearestKeys(sources, {program.owner(row) for row in compared})
    own = frozenset(nearest.behind(program.owner(first)))

    def may_be_of_it(row: ComparisonRow) -> bool:
        if known:  # the axes may be flattened for several layers at once
            return row.likely == first.likely
        return backward or (row.made_here and not row.reads_recorded)

    unclear = (row for row in rows if row.family == first.family and may_be_of_it(row))
    return frozenset(
        key_of(row.family, row.name) for row in unclear if not own.isdisjoint(nearest.behind(program.owner(row)))
    )


def _part(rows: Sequence[ComparisonRow], first: ComparisonRow | None, program: Program) -> str:
    """Returns the name of the value that a divergence has another name for: that of the last part of a layer.

    Where the candidate computes something of that value, it has both, and the value may agree.
    """
    name = "" if first is None else program.owner(first).partition("/")[2]
    agrees = any(row.status == "same" and row.family == ACTIVATION and row.name == name for row in rows)
    return name if first is not None and name.startswith(f"{first.name}/") and not agrees else ""


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
        if row.family == ACTIVATION and row.status == "same" and (row.made_here or row.explained)
        # A much smaller error may be rounding, and the divergence has a cause of its own.
        and COMPARABLE * as_float(row.metrics["rel_l2"]) >= error and program.owner(first) in following(row)
    )  # fmt: skip
    return min(made, key=lambda row: row.index, default=None)
