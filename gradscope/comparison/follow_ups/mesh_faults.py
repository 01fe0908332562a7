"""`mesh_fault` says by what kind of fault a mesh has other values, or other gradients, than fewer devices."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import cached_property
from itertools import chain
from typing import Final

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.arrays.widening import as_reals
from gradscope.comparison.follow_ups.mesh_collectives import MeshCollectives, likely_first, over_axis
from gradscope.comparison.follow_ups.mesh_fault import LOSS, FaultKind, MeshFault
from gradscope.comparison.follow_ups.mesh_paths import leading_to_loss
from gradscope.comparison.follow_ups.mesh_relations import Relation, are_masked_otherwise, factor_between, relation_of
from gradscope.comparison.follow_ups.mesh_values import axis_values, terms_read
from gradscope.comparison.follow_ups.repeated_terms import RepeatedTerm, repeated_parameters, repeated_values
from gradscope.comparison.judging.rows import ComparisonRow
from gradscope.comparison.pairing.loops.by_shards import layout_of
from gradscope.comparison.pairing.loops.shard_groups import ShardGroup, divides, shard_groups
from gradscope.comparison.pairing.loops.shard_layouts import TERMS
from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.comparison.result import Comparison
from gradscope.dump.manifest.operation_facts import Collective
from gradscope.naming import (
    ACTIVATION,
    ACTIVATION_GRAD,
    INPUT,
    PARAM,
    PARAM_GRAD,
    STATE,
    is_gradient,
    key_of,
)

#: The families of what a program is given.
_ARGUMENTS: Final = frozenset({PARAM, STATE, INPUT})

#: How far a factor may be from a number of devices, relative to it.
_NEAR: Final = 1e-3


def mesh_fault(found: Comparison, dumps: Dumps, agreed: Iterable[Mapping[str, int]] = ()) -> MeshFault | None:
    """Returns the fault by which more devices differ from fewer; None where what those have is not divided further.

    Args:
        found: The comparison.
        dumps: The dumps of fewer devices and of more.
        agreed: The numbers of devices along each axis of other meshes, which do not differ: no axis is at fault that
            had as many devices there.

    Raises:
        DumpError: A dump is damaged.
    """
    few = math.prod(dumps.ref.manifest.mesh.values()) == 1 or divides(dumps.ref, dumps.cand)
    return _Search(found, dumps, agreed).fault() if few else None


def loss_differs(found: Comparison) -> bool:
    """Returns whether the losses of a comparison differ by more than any order of sums explains."""
    losses = found.losses
    # How far rounding may take a loss is judged by its values, which a selection may leave out.
    if losses is None:
        return False
    return not abs(losses.cand - losses.ref) <= _NEAR * max(abs(losses.cand), abs(losses.ref))  # of a NaN, nothing is


class _Search:
    def __init__(self, found: Comparison, dumps: Dumps, agreed: Iterable[Mapping[str, int]]) -> None:
        self._found = found
        self._dumps = dumps
        few, more = dumps.ref.manifest.mesh, dumps.cand.manifest.mesh
        self._devices = math.prod(few.values())
        further = {axis: size // few.get(axis, 1) for axis, size in more.items() if size > few.get(axis, 1)}
        # How many times more devices there are along each axis that may be at fault.
        self._mesh = {
            axis: times for axis, times in further.items() if all(each.get(axis) != more[axis] for each in agreed)
        } or further
        self._collectives = MeshCollectives(collectives=dumps.cand.manifest.collectives, mesh=self._mesh)
        self._matches: Mapping[str, Match] = {match.ref: match for match in found.matches}

    @cached_property
    def _groups(self) -> Mapping[str, ShardGroup]:
        ref, cand = self._dumps.ref, self._dumps.cand
        return {group.whole: group for group in shard_groups(ref, cand, cand.keys())}

    def fault(self) -> MeshFault | None:
        """Returns the fault."""
        arguments = (row for row in self._found.rows if row.family in _ARGUMENTS and row.status == "different")
        if (row := next(arguments, None)) is not None:
            return self._fault("arguments", row, "", None, None)
        if (factor := self._common_factor()) is not None:
            passed = likely_first(factor, self._collectives.collectives[::-1])
            axis = self._collectives.axes_of(factor, passed)
            return self._fault("factor", None, axis, factor, next(over_axis(axis, passed), None))
        if (terms := self._terms_used()) is not None:
            return terms
        row = self._first()
        if loss_differs(self._found) and (row is None or self._is_loss_alone()):
            return self._of_loss()
        return None if row is None else self._at_row(row)

    def _is_added_up(self, row: ComparisonRow, axis: str) -> bool:
        """Returns whether operations show that a value is nothing but a term of a sum over an axis."""
        return self._collectives.adds_up_at_once(row.name, axis, self._dumps.cand.manifest.layers)

    def _is_loss_alone(self) -> bool:
        """Returns whether all that differs is the value of the loss, which operations may return."""
        rows, losses = [row for row in self._found.rows if row.status == "different"], self._found.losses
        pairs = [self._pair(row) if row.family == ACTIVATION else None for row in rows]
        return losses is not None and all(
            pair is not None and pair[1].size == 1 and float(pair[1].item()) == losses.cand for pair in pairs
        )

    def _at_row(self, row: ComparisonRow) -> MeshFault:
        """Returns the fault at a row that differs."""
        if row.metrics.get("nonfinite_mismatch"):
            return self._fault("not finite", row, "", None, None)
        if (found := self.relation(row)) is not None:
            axis, relation = found
            if relation.kind == "terms" and (repeated := self._repeated(row, axis)) is not None:
                return repeated
            collective = self._collectives.nearest(row, axis)
            return self._fault(relation.kind, row, axis, None, collective, detail=relation.detail)
        if row.family == ACTIVATION and (pair := self._pair(row)) and are_masked_otherwise(*pair):
            return self._fault("zeros", row, "", None, None)
        of_terms = (self._repeated(row, axis) for axis in self._mesh if self._is_added_up(row, axis))
        known = next(filter(None, of_terms), None)
        known = known or self._multiple(row) or self._repeated(row) or self._of_parameter(row)
        return known or self._fault("values", row, "", None, None)

    def _of_parameter(self, row: ComparisonRow) -> MeshFault | None:
        """Returns the fault where a gradient is wrong in parts, and the parameter's of one part is a multiple.

        Going backwards, what several layers send to one value is added up there, right and wrong.
        """
        rows = [each for each in self._found.rows if each.family == PARAM_GRAD and each.status == "different"]
        last_first = sorted(rows, key=lambda each: -each.index) if is_gradient(row.family) else []
        return next(filter(None, map(self._multiple, last_first)), None)

    def _common_factor(self) -> float | None:
        """Returns how many times as large the loss and the gradients of all parameters are; None where they are not."""
        losses = self._found.losses
        factor = losses.cand / losses.ref if losses is not None and losses.ref else 0.0
        if losses is None or not factor or not self._collectives.axes_of(factor, ()):
            return None
        if losses.factor is not None:
            return factor
        rows = [row for row in self._found.rows if row.family == PARAM_GRAD and row.status == "different"]
        pairs = filter(None, map(self._pair, rows))
        same = rows and all(
            (found := factor_between(*pair)) and abs(found - factor) <= _NEAR * factor for pair in pairs
        )
        return factor if same else None

    def _terms_used(self) -> MeshFault | None:
        """Returns the fault at the value whose terms make that of fewer devices, and are used before their sum.

        What arrives at terms that are added up, going backwards, is what arrives at their sum. So this gradient is the
        last that is wrong before the values are, and something is computed of the terms that is wrong as well.
        """
        forward = self._found.first_divergence.forward
        if forward is None and not loss_differs(self._found):
            return None
        end = math.inf if forward is None else forward.index
        wrong = {
            row.name: row.index
            for row in self._found.rows
            if row.family == ACTIVATION_GRAD and row.status == "different" and row.index < end
        }
        if not wrong:
            return None
        last = max(wrong.values())
        for row in self._found.rows:
            group = self._groups.get(key_of(ACTIVATION, row.name)) if row.family == ACTIVATION else None
            if group is None or wrong.get(row.name) != last:
                continue
            layout = layout_of(self._dumps.ref, self._dumps.cand, group, ACTIVATION)
            ways = dict.fromkeys(group.axes) if layout is None else dict(zip(group.axes, layout.ways, strict=True))
            axes = [axis for axis, way in ways.items() if way in TERMS and axis in self._mesh]
            if row.status == "same" and axes and not all(self._is_added_up(row, axis) for axis in axes):
                return self._fault("terms", row, ",".join(axes), None, None)
        return None

    def _first(self) -> ComparisonRow | None:
        """Returns the first row that differs, in the direction of computation."""
        first = self._found.first_divergence
        if first.forward is not None:
            return next(iter(leading_to_loss(self._found.rows, self._dumps.ref)), first.forward)
        others = [row for row in self._found.rows if row.status == "different" and is_gradient(row.family)]
        return first.backward or max(others, key=lambda row: row.index, default=None)

    def _of_loss(self) -> MeshFault | None:
        """Returns the fault of a loss that alone differs: nothing behind the last layer reduces it."""
        last = max((layer.index for layer in self._dumps.cand.manifest.layers), default=0)
        reduced = {axis for each in self._collectives.collectives if each.index > last for axis in each.axes}
        axes = [axis for axis in self._mesh if axis not in reduced | self._equal_along()]
        return self._fault("not reduced" if axes else "values", None, ",".join(axes), None, None)

    def _equal_along(self) -> set[str]:
        """Returns the axes of the mesh along which all devices have the last value that the loss is computed from."""
        groups = {key: self._groups[key] for key in self._dumps.ref.manifest.loss_sources if key in self._groups}
        found: set[str] = set()
        for group in groups.values():
            layout = layout_of(self._dumps.ref, self._dumps.cand, group, ACTIVATION)
            found.update(() if layout is None else ([*group.axes][at] for at in layout.copied))
        return found

    def relation(self, row: ComparisonRow) -> tuple[str, Relation] | None:
        """Returns the axis of the mesh along which what devices have is in a relation to what fewer have, and that."""
        group = self._groups.get(key_of(ACTIVATION, row.name))
        if group is None or row.family not in (ACTIVATION, ACTIVATION_GRAD):
            return None
        for values in axis_values(self._dumps, group, row.family):
            if values.axis in self._mesh and (found := relation_of(values)) is not None:
                return values.axis, found
        return None

    def _multiple(self, row: ComparisonRow) -> MeshFault | None:
        """Returns the fault where a value is multiplied by the number of devices along some axes, or divided by it."""
        pair = self._pair(row)
        if pair is None:
            return None
        one, several = map(_without_offset, pair)
        factor = factor_between(one, several)
        if factor is None:
            return None
        if abs(factor - 1) < _NEAR:
            terms = repeated_parameters(self._dumps.ref, pair[1] - pair[0])
            return None if is_gradient(row.family) else self._added_again(row, terms)
        passed = likely_first(factor, self._collectives.passed(row))
        axis = self._collectives.axes_of(factor, passed)
        return self._fault("factor", row, axis, factor, next(over_axis(axis, passed), None)) if axis else None

    def _repeated(self, row: ComparisonRow, summed: str = "") -> MeshFault | None:
        """Returns the fault where each device adds what is to be added once, as a bias or a residual connection.

        Args:
            row: The row that differs.
            summed: The axis along which its value is in terms; they have to be added up behind it.
        """
        layers = self._dumps.cand.manifest.layers
        if row.family != ACTIVATION or (summed and not self._collectives.adds_up(row, summed, layers)):
            return None
        group, pair = self._groups.get(key_of(ACTIVATION, row.name)), self._pair(row)
        operands = terms_read(self._dumps, self._groups, row.name, summed) if summed else ()
        parts = () if group is None else axis_values(self._dumps, group, ACTIVATION, operands)
        rests = [np.sum(each.several, axis=0) - each.whole for each in parts if each.axis == summed]
        rests += [] if pair is None or summed else [pair[1] - pair[0]]
        source = self._dumps.ref
        found = (
            self._added_again(row, chain(repeated_parameters(source, rest), repeated_values(source, row, rest)), summed)
            for rest in rests
        )
        return next(filter(None, found), None)

    def _added_again(self, row: ComparisonRow, terms: Iterable[RepeatedTerm], summed: str = "") -> MeshFault | None:
        """Returns the fault where one of some terms is in a value as many times as there are devices along an axis."""
        if self._devices > 1:  # fewer devices have it several times, too
            return None
        for term in terms:
            axis = self._collectives.axes_of(term.more + 1, self._collectives.passed(row))
            if axis and summed:  # of several axes with as many devices, the one along which it was found
                axis = summed if self._mesh[summed] == round(term.more + 1) else ""
            if axis:
                detail = f"{term.words} {term.more + 1:.4g}"
                return self._fault("added again", row, axis, None, self._collectives.nearest(row, axis), detail=detail)
        return None

    def _pair(self, row: ComparisonRow) -> tuple[Array, Array] | None:
        """Returns the values of a row, those of one device first; None where a dump lacks them."""
        match = self._matches.get(key_of(row.family, row.name))
        ref, cand = self._dumps.ref, self._dumps.cand
        if match is None or not ref.has_tensor(match.ref) or not all(map(cand.has_tensor, match.recipe.keys)):
            return None
        one, several = as_reals(ref.array(match.ref)), as_reals(match.recipe.array(cand))
        return (one, several) if one.shape == several.shape else None

    def _fault(
        self, kind: FaultKind, row: ComparisonRow | None, axis: str, factor: float | None,
        collective: Collective | None, *, detail: str = "",
    ) -> MeshFault:  # fmt: skip
        """Returns the fault at a row; at the loss where there is none."""
        own = None if row is None else row.source
        return MeshFault(
            kind=kind, name=LOSS if row is None else row.name, family="" if row is None else row.family, axis=axis,
            factor=factor, detail=detail, collective=collective,
            source=own if collective is None or collective.source is None else collective.source,
            devices=self._devices,
        )  # fmt: skip


def _without_offset(values: Array) -> Array:
    """Returns values less the mean over all axes but the last, as a bias is the same there."""
    return values - values.mean(tuple(range(values.ndim - 1)), keepdims=True) if values.ndim > 1 else values
