"""`by_packed_layers` matches the output of a packed layer with the outputs of the layers that are packed in it.

One program projects query, key and value by one layer, or runs all experts as one, where the other has a layer for
each. Which parameters are packed in which is known from their values (`values.parts.by_parts`). The output of a layer
that uses a packed one is cut into the outputs of the layers that use the parts, along the axis and in the layout in
which most parts agree. Where none does, the layout is that of most activations that are found by their values. A part
whose layer nothing reads, as the last residual of a network that adds up skips, is not computed where it is a layer
alone.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.default_tolerances import FULL
from gradscope.comparison.layout.layouts import AxisLayout, agreeing_layouts, layouts, relative_error
from gradscope.comparison.layout.recipe_steps import Concatenate, Split, Stack, Transpose, Unstack
from gradscope.comparison.layout.recipes import Recipe
from gradscope.comparison.pairing.matching import Dumps, Match, MatchedBy, Pairing
from gradscope.comparison.pairing.values.parts.packed_parameters import packed_parameters
from gradscope.comparison.precision import comparable
from gradscope.dump.interfaces import DumpSource
from gradscope.naming import ACTIVATION, PARAM, key_of, split_key


class _Known(NamedTuple):
    """_Known has what the pairs that are found so far tell of the parts of a tensor.

    Attributes:
        usual: The order of axes in which most activations are found, by their number.
        same: The relative error up to which a part is found by its values, and not by its place.
    """

    usual: Mapping[int, tuple[int, ...]]
    same: float


def by_packed_layers(dumps: Dumps, unmatched: Pairing) -> Iterator[Match]:
    """Yields matches of activations of which one program has several as one."""
    if not dumps.ref.manifest.layers or not dumps.cand.manifest.layers:
        return
    in_cand, in_ref = packed_parameters(unmatched.matched)
    outputs = outputs_of(dumps.ref), outputs_of(dumps.cand)
    of_cand, of_ref = paired_parameters(unmatched.matched)
    known = _Known(_usual(unmatched.matched), dumps.tolerance(ACTIVATION, FULL, FULL))
    free = {*unmatched.only_ref}, {*unmatched.only_cand}
    for packed, parts in calls_of(in_cand, outputs[1], outputs[0], of_cand, unread=True):
        cut = _cut(dumps.cand, packed, dumps.ref, parts, known, of_ref=False) if packed in free[1] else None
        if cut is not None:
            steps = (cut.step, *cut.layout.steps(cut.shape))
            for number, part in enumerate(parts):
                if part in free[0]:
                    recipe = Recipe(keys=(packed,), steps=steps, part=number)
                    yield Match(ref=part, recipe=recipe, matched_by=cut.found_by(number))
    for packed, parts in calls_of(in_ref, outputs[0], outputs[1], of_ref):
        alone = packed in free[0] and free[1].issuperset(parts)
        cut = _cut(dumps.ref, packed, dumps.cand, parts, known, of_ref=True) if alone else None
        if cut is not None:
            joined = Stack(cut.axis) if isinstance(cut.step, Unstack) else Concatenate(cut.axis)
            recipe = Recipe(keys=parts, steps=(*cut.layout.steps(dumps.cand.entry(parts[0]).shape), joined))
            yield Match(ref=packed, recipe=recipe, matched_by=cut.found_by(*range(len(parts))))


def _usual(matches: Iterable[Match]) -> dict[int, tuple[int, ...]]:
    """Returns the order of the candidate's axes in which most activations are found by values, by their number."""
    found: defaultdict[int, Counter[tuple[int, ...]]] = defaultdict(Counter)
    for match in matches:
        steps = match.recipe.steps
        if split_key(match.ref)[0] == ACTIVATION and len(steps) == 1 and isinstance(steps[0], Transpose):
            found[len(steps[0].axes)][steps[0].axes] += 1
    return {rank: counts.most_common(1)[0][0] for rank, counts in found.items()}


def outputs_of(source: DumpSource) -> dict[str, list[str]]:
    """Returns the outputs of the innermost layers that use each parameter, in execution order, by its key.

    Args:
        source: The dump.
    """
    composites = {layer.parent for layer in source.manifest.layers}
    stored = {key for key in source.keys() if source.has_tensor(key)}  # noqa: SIM118 - no mapping
    found: dict[str, list[str]] = {}
    for layer in source.manifest.layers:
        outputs = [key_of(ACTIVATION, name) for name in layer.outputs]
        if layer.path not in composites and len(outputs) == 1 and outputs[0] in stored:
            for name in layer.params:
                found.setdefault(key_of(PARAM, name), []).append(source.resolve(outputs[0]))
    return found


def paired_parameters(matches: Iterable[Match]) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Returns the reference's counterparts of the candidate's parameters, by key, and those the other way round.

    Args:
        matches: All pairs.
    """
    of_cand: defaultdict[str, list[str]] = defaultdict(list)
    of_ref: defaultdict[str, list[str]] = defaultdict(list)
    for match in matches:
        if split_key(match.ref)[0] == PARAM:
            of_ref[match.ref].extend(match.recipe.keys)
            for key in match.recipe.keys:
                of_cand[key].append(match.ref)
    return of_cand, of_ref


def calls_of(
    packed: Mapping[str, Sequence[str]],
    holder: Mapping[str, list[str]],
    other: Mapping[str, list[str]],
    paired: Mapping[str, Sequence[str]],
    *,
    unread: bool = False,
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yields the outputs of packed layers with those of their parts; of several parameters of a layer the last decides.

    A layer that is a stack of experts may use several that are apart in the other program, one after the other. What
    uses all parts, or also a parameter of a layer that is none of them, as a whole attention does, returns something
    else. So does the one layer of an LSTM, which adds up what other programs have a layer each for, of input and state.

    Args:
        packed: The parts of each packed parameter, by its key.
        holder: The outputs of the layers of the program that has packed ones, by the keys of their parameters.
        other: The same of the other program.
        paired: The counterparts of all parameters of the program that has packed ones.
        unread: Whether some parts may have no layers, which nothing reads; their outputs are "".
    """
    found: dict[str, tuple[str, ...]] = {}
    for name, parts in packed.items():
        wholes, outputs = holder.get(name, []), [other.get(part, []) for part in parts]
        counts = {len(each) for each in outputs}
        if counts == {len(wholes)} or (unread and counts == {len(wholes), 0}):
            found |= {out: tuple(each[call] if each else "" for each in outputs) for call, out in enumerate(wholes)}
    found = {output: parts for output, parts in found.items() if len({*filter(None, parts)}) == sum(map(bool, parts))}
    for name, counterparts in paired.items():
        users = [users for each in counterparts if (users := {*other.get(each, [])})]
        for output in holder.get(name, []):
            if any(each.isdisjoint(found.get(output, each)) for each in users):
                found.pop(output, None)
    yield from found.items()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cut:
    """_Cut stores how a packed tensor is cut.

    Attributes:
        axis: The axis along which it is cut.
        step: The step that cuts it.
        shape: The shape of the parts that the step makes.
        layout: The layout of the parts.
        agreeing: The parts that agree, by their numbers.
    """

    axis: int
    step: Split | Unstack
    shape: tuple[int, ...]
    layout: AxisLayout
    agreeing: frozenset[int]

    def found_by(self, *parts: int) -> MatchedBy:
        return "fingerprint" if self.agreeing.issuperset(parts) else "order"


def _cut(
    holder: DumpSource,
    packed: str,
    other: DumpSource,
    parts: Sequence[str],
    known: _Known,
    *,
    of_ref: bool,
) -> _Cut | None:
    """Returns how a tensor is cut into others; None where their shapes do not fit."""
    entries = [other.entry(part) for part in parts if part]
    if not all(comparable(holder.entry(packed).dtype, entry.dtype) for entry in entries):
        return None
    # What is not computed is taken to have the shape of the others, and agrees with nothing.
    unread = np.full(entries[0].shape, np.nan, np.float32)
    array, arrays = holder.array(packed), [other.array(part) if part else unread for part in parts]
    cuts = [_read(array, arrays, axis, known, of_ref=of_ref) for axis in reversed(range(array.ndim))]
    return max(filter(None, cuts), key=lambda cut: len(cut.agreeing), default=None)


def _read(array: Array, parts: Sequence[Array], axis: int, known: _Known, *, of_ref: bool) -> _Cut | None:
    """Returns the cut along an axis, in the layout in which most parts agree; None where the shapes do not fit."""
    step = _step(array, parts, axis, of_ref=of_ref)
    if step is None:
        return None
    blocks = step.apply([array])
    pairs = [(block, part) if of_ref else (part, block) for block, part in zip(blocks, parts, strict=True)]
    ref, cand = pairs[0]
    possible = [layout for pair in pairs for layout in agreeing_layouts(*pair)]
    # An order of axes is a layout of parts of several sizes, and no other layout is.
    even = len({(one.shape, other.shape) for one, other in pairs}) == 1
    fitted = [layout if even else _ordered(layout, ref, cand) for layout in possible]
    fitted.append(_default(ref, cand, known.usual))
    found = {
        layout: frozenset(
            number
            for number, pair in enumerate(pairs)
            if (own := layout if even else _ordered(layout, *pair)) is not None
            and relative_error(*pair, own) <= known.same
        )
        for layout in fitted
        if layout is not None
    }
    if not found:
        return None
    layout = max(found, key=lambda each: len(found[each]))
    return _Cut(axis=axis, step=step, shape=blocks[0].shape, layout=layout, agreeing=found[layout])


def _default(ref: Array, cand: Array, usual: Mapping[int, tuple[int, ...]]) -> AxisLayout | None:
    """Returns the layout of parts of which none agrees: the usual order of axes, or the order that elements are in."""
    if ref.ndim != cand.ndim:
        return next((each for each in layouts(ref.shape, cand.shape) if each.in_order), None)
    axes = usual.get(cand.ndim, tuple(range(cand.ndim)))
    return _ordered(AxisLayout(cand.shape, axes, ref.shape), ref, cand)


def _ordered(layout: AxisLayout, ref: Array, cand: Array) -> AxisLayout | None:
    """Returns the order of axes of a layout as that of two arrays; None where it is more, or does not fit them."""
    if len(layout.axes) != cand.ndim or len(layout.split) != len(layout.shape):
        return None
    arranged = tuple(cand.shape[axis] for axis in layout.axes)
    return AxisLayout(cand.shape, layout.axes, arranged) if arranged == ref.shape else None


def _step(array: Array, parts: Sequence[Array], axis: int, *, of_ref: bool) -> Split | Unstack | None:
    """Returns the step that cuts an array along an axis into tensors of the sizes of parts; None where none does.

    Parts of one size may have an axis for the heads that the array has in one with their features.
    """
    size, total = array.shape[axis], sum(part.size for part in parts)
    rest = sorted(np.delete(array.shape, axis).tolist())
    if array.size != total:
        return None
    if all(part.ndim == array.ndim - 1 for part in parts):
        return Unstack(axis) if size == len(parts) and all(sorted(part.shape) == rest for part in parts) else None
    if any(part.size * size % total for part in parts):
        return None
    sizes = tuple(part.size * size // total for part in parts)
    even = len(set(sizes)) == 1
    for part, own in zip(parts, sizes, strict=True):
        block = (*array.shape[:axis], own, *array.shape[axis + 1 :])
        shapes = (block, part.shape) if of_ref else (part.shape, block)
        if sorted(part.shape) != sorted(block) and not (even and layouts(*shapes)):
            return None
    return Split(axis, len(parts) if even else sizes)
