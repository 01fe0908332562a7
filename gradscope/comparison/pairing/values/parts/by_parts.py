"""`by_parts` matches packed parameters and inputs of one dump with separate ones of the other.

PyTorch packs the projections of attention into one weight `[3 width, width]`, and the gates of an LSTM into one of
`[4 width, in]`; other frameworks have a kernel for each. The edges of a graph are one input `[2, edges]`, or one of
senders and one of receivers. The kernels of experts may be stacked in two axes, `[layers, experts, in, out]`. A
packed tensor is matched where every part of it is found, by values, among tensors that nothing else matched; parts of
several sizes, as where queries share keys and values, are matched by `uneven_parts`, those that are joined along two
axes by `grid_parts`, and those beside zeros by `parts_beside_zeros`. Where parts are equal, as biases that are all
zero, the names of a packed tensor whose values decide show which is which, or else the gradients, or the numbers of
the layers in order. Those names also show the parts of a packed tensor whose values are wrong: of one of the same
shape, or of another parameter of the same layer. A single wrong part is the one that is called as the others are.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Final

from gradscope.arrays.blocks import Array
from gradscope.comparison.layout.layouts import AxisLayout, Shape
from gradscope.comparison.pairing.inference.equal_parts import Layouts, assigned
from gradscope.comparison.pairing.inference.layout_search import LayoutSearch
from gradscope.comparison.pairing.inference.packed_parts import Cut, PackedParts, cuts, packed_parts
from gradscope.comparison.pairing.matching import Dumps, Match, Pairing
from gradscope.comparison.pairing.values.parts.constant_parts import ConstantParts
from gradscope.comparison.pairing.values.parts.joined.grid_parts import grid_parts
from gradscope.comparison.pairing.values.parts.joined.uneven_parts import uneven_parts
from gradscope.comparison.pairing.values.parts.part_candidates import PartCandidates
from gradscope.comparison.pairing.values.parts.part_names import ShiftedNames, SolvedNames, layer_of
from gradscope.comparison.pairing.values.parts.parts_beside_zeros import parts_beside_zeros
from gradscope.comparison.pairing.values.parts.used_in_turn import UsedInTurn
from gradscope.dump.interfaces import DumpSource
from gradscope.naming import INPUT, PARAM, STATE, TENSOR, split_key
from gradscope.naming.numbering import NUMBER

#: The families of tensors that are inputs of a program, of which it may pack several.
_INPUT_FAMILIES: Final = (PARAM, STATE, TENSOR, INPUT)

_NUMBER: Final = re.compile(NUMBER)


def by_parts(dumps: Dumps, unmatched: Pairing) -> Iterator[Match]:
    """Yields matches of packed tensors with the tensors that are packed in them."""
    ref, cand = (_input_tensors(dumps.ref, unmatched.only_ref), _input_tensors(dumps.cand, unmatched.only_cand))
    if not ref or not cand:
        return
    taken: set[str] = set()
    possible = LayoutSearch(dumps).of_shapes
    for packed in _found(dumps.cand, cand, dumps.ref, ref, possible, of_ref=False):
        taken |= {packed.key, *packed.parts}
        yield from packed.matches(dumps, of_ref=False)
    for packed in _found(dumps.ref, ref, dumps.cand, cand, possible, of_ref=True):
        taken |= {packed.key, *packed.parts}
        yield from packed.matches(dumps, of_ref=True)
    free = [[key for key in keys if key not in taken] for keys in (ref, cand)]
    for match in uneven_parts(dumps, *free):
        taken |= {match.ref, *match.recipe.keys}
        yield match
    free = [[key for key in keys if key not in taken] for keys in (ref, cand)]
    yield from grid_parts(dumps, *free)
    yield from parts_beside_zeros(dumps, *free)


def _input_tensors(source: DumpSource, keys: Sequence[str]) -> list[str]:
    """Returns the keys of a program's inputs, those of the most axes first, because their values decide best."""
    inputs = [
        key
        for key in keys
        if split_key(key)[0] in _INPUT_FAMILIES and source.entry(key).alias_of is None and source.has_tensor(key)
    ]
    return sorted(inputs, key=lambda key: -len(source.entry(key).shape))


def _found(
    holder: DumpSource,
    packed: Sequence[str],
    other: DumpSource,
    singles: Sequence[str],
    possible: Layouts,
    *,
    of_ref: bool,
) -> Iterator[PackedParts]:
    free, names = PartCandidates(other, singles), SolvedNames()
    solved: list[PackedParts] = []
    constants = ConstantParts(holder, packed, other, free, solved, of_ref=of_ref)
    for key in packed:
        size = _size(holder, key)
        for count in free.counts(size):
            named = next(filter(None, (free.named(each, size // count) for each in names.parts_of(key))), [])
            if not named and constants.value(key) is not None:
                found = constants.parts_of(key, count)
            else:
                found = packed_parts(holder, key, count, partial(free.arrays, named), possible, of_ref=of_ref)
                found = found or constants.parts_of_blocks(key, count)
            if found is not None:
                names.add(found.key, found.parts)
                solved.append(found)
                for part in found.parts:
                    free.remove(part)
                yield found
                break
    done = {each.key for each in solved}
    unsolved = [key for key in packed if key not in done]
    yield from _by_names(holder, unsolved, other, free, names=names, solved=solved, of_ref=of_ref)


def _by_names(
    holder: DumpSource,
    keys: Sequence[str],
    other: DumpSource,
    free: PartCandidates,
    *,
    names: SolvedNames,
    solved: Sequence[PackedParts],
    of_ref: bool,
) -> Iterator[PackedParts]:
    """Yields packed tensors with the parts that names show.

    They are cut as the parts show whose values agree, or else as a tensor of the same shape whose values do.
    """
    shifted, in_turn = ShiftedNames(), UsedInTurn(holder, other, solved)
    alike: dict[tuple[tuple[int, ...], int], PackedParts] = {}
    of_layer: defaultdict[tuple[tuple[str, ...], ...], list[Sequence[str]]] = defaultdict(list)
    for each in solved:
        shifted.add(each.key, each.parts)
        alike.setdefault((holder.entry(each.key).shape, len(each.parts)), each)
        of_layer[layer_of(each.key)].append(each.parts)
    in_size: defaultdict[tuple[Shape, int], list[str]] = defaultdict(list)
    for key in keys:
        in_size[holder.entry(key).shape[:1], _size(holder, key)].append(key)
    for key in keys:
        shape = holder.entry(key).shape
        proposed = chain(names.parts_of(key), shifted.parts_of(key))
        parts = next(filter(None, (free.named(each, math.prod(shape) // max(len(each), 1)) for each in proposed)), [])
        found = _partly_agreeing(holder, key, other, parts, of_ref=of_ref) or alike.get((shape, len(parts)))
        if not parts:
            layers = (free.beside(each, math.prod(shape)) for each in of_layer[layer_of(key)])
            parts = next(filter(None, layers), []) or _mostly(holder, key, other, free, of_ref=of_ref)
            parts = parts or _in_turn(key, shape, in_size[shape[:1], math.prod(shape)], free, in_turn)
            # The terms of a sum of biases are beside a kernel, too, and are no biases of its parts.
            found = _partly_agreeing(holder, key, other, parts, least=-(-len(parts) // 2), of_ref=of_ref)
        if parts and found is not None:
            for part in parts:
                free.remove(part)
            yield replace(found, key=key, parts=tuple(parts), matched_by="order")


def _in_turn(key: str, shape: Shape, alike: Sequence[str], free: PartCandidates, in_turn: UsedInTurn) -> list[str]:
    """Returns the parts of a stack by when they are used, as where one has the values of another layer's."""
    count, size = (shape or (0,))[0], math.prod(shape)
    return in_turn.parts(key, alike, free.of_size(size // count), count) if count > 1 and size else []


def _mostly(holder: DumpSource, key: str, other: DumpSource, free: PartCandidates, *, of_ref: bool) -> list[str]:
    """Returns the parts of a tensor of which all but one are found by values, and the last by its name."""
    counts = [count for count in free.counts(_size(holder, key)) if count > 2]
    if not counts:
        return []  # a large tensor that nothing is a part of is not read
    array = holder.array(key)
    for count in counts:
        for cut in cuts(array.shape, count):
            blocks = cut.blocks(array, count)
            near = free.near(blocks)
            if len(near) < count - 1:
                continue
            singles = {each: other.array(each) for each in near}
            found = [_single(block, singles, of_ref=of_ref) for block in blocks]
            if None not in found and any(each is not None and each[1].interleaved for each in found):
                return []  # those without rotary positions have no halves that are interleaved
            common = Counter(each[1] for each in found if each is not None).most_common(1)
            known = [each[0] if each is not None and each[1] == common[0][0] else None for each in found]
            names = [each for each in known if each is not None]
            if len({*names}) == len(names) == count - 1:
                rest = free.like(names, array.size // count)
                return [each or rest for each in known] if rest is not None else []
    return []


def _single(block: Array, singles: Mapping[str, Array], *, of_ref: bool) -> tuple[str, AxisLayout] | None:
    """Returns which of some tensors a block is, and in which layout; None for none."""
    for name, each in singles.items():
        found = assigned([block], {0: each}) if of_ref else assigned([each], {0: block})
        if found is not None:
            return name, found[1]
    return None


def _partly_agreeing(
    holder: DumpSource, key: str, other: DumpSource, parts: Sequence[str], *, of_ref: bool, least: int = 1
) -> PackedParts | None:
    """Returns the cut of a tensor in which most of some parts, in their order, agree; None where too few do."""
    if not parts:
        return None
    array, arrays = holder.array(key), [other.array(part) for part in parts]
    layouts: Counter[tuple[Cut, AxisLayout]] = Counter()
    for cut in cuts(array.shape, len(parts)):
        for block, part in zip(cut.blocks(array, len(parts)), arrays, strict=True):
            found = assigned([block], {0: part}) if of_ref else assigned([part], {0: block})
            if found is not None:
                layouts[cut, found[1]] += 1
    return next((PackedParts(key, tuple(parts), *way) for way, count in layouts.most_common(1) if count >= least), None)


def _size(source: DumpSource, key: str) -> int:
    return math.prod(source.entry(key).shape)
