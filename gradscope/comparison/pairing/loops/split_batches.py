"""`by_split_batches` matches the values of parts of a batch with those of other parts of it.

Both programs run over parts of the batch, as two that accumulate gradients do, and cut it otherwise: one in two halves,
and the other so that each part has every fourth example, or in parts of other sizes. No part of one is made of parts of
the other. All parts of one together are the batch, of which the other's are cut. How it is cut, and in which order, the
first values show that agree so; what comes behind them is joined and cut in the same way, whether it agrees or not.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, TypeAlias

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.layout.example_orders import Order, order_of_examples
from gradscope.comparison.layout.recipe_steps import Split
from gradscope.comparison.layout.recipes import Recipe
from gradscope.comparison.pairing.loops.batch_parts import LayerCalls, LayerNames, layer_calls
from gradscope.comparison.pairing.loops.joined_parts import PartJoin
from gradscope.comparison.pairing.matching import Dumps, Match, Pairing
from gradscope.comparison.precision import dtype_class
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.json_text import as_float
from gradscope.naming import ACTIVATION, ACTIVATION_GRAD, INPUT, key_of, split_key
from gradscope.naming.paths import without_iterations, without_occurrence

#: The most values whose examples are read to find how a batch is cut.
_MOST_READ: Final = 8

#: How far values may be apart that show how a batch is cut, and their norms where they are compared in turn.
_SAME: Final = 1e-4

#: The sizes of the parts of one program along the axis of the examples.
_Sizes: TypeAlias = tuple[int, ...]


def is_cut_otherwise(match: Match) -> bool:
    """Returns whether a pair is one of parts of a batch that both programs cut otherwise."""
    recipe = match.recipe
    return match.matched_by == "iterations" and len(recipe.keys) > 1 and isinstance(recipe.steps[-1], Split)


def without_calls(matches: Sequence[Match]) -> list[Match]:
    """Returns pairs by name without those of layers that are called several times, as a mean over each part is."""
    called = Counter(_layer(match) for match in matches)
    return [match for match in matches if not _layer(match)[1] or called[_layer(match)] == 1]


def _layer(match: Match) -> tuple[str, str]:
    """Returns the family of a pair, and the name of the layer whose call computes it; "" of what no layer computes."""
    family, name = split_key(match.ref)
    computed = family in (ACTIVATION, ACTIVATION_GRAD)
    return family, without_iterations(without_occurrence(name)) if computed else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Split:
    """_Split stores how both programs cut the batch.

    Attributes:
        ref: The sizes of the reference's parts.
        cand: The sizes of the candidate's.
        order: Where each example of the reference's parts is among those of the candidate's.
    """

    ref: _Sizes
    cand: _Sizes
    order: Order


def by_split_batches(dumps: Dumps, unmatched: Pairing, renamed: LayerNames | None = None) -> Iterator[Match]:
    """Yields matches of activations of parts of a batch, and of their gradients, with those of other parts.

    Args:
        dumps: The dumps.
        unmatched: What is matched.
        renamed: The names of layers in both programs; None where they are the same.
    """
    groups = [each for each in layer_calls(unmatched.only_ref, unmatched.only_cand, renamed) if min(map(len, each)) > 1]
    found = _proven(dumps, groups) or _proven(dumps, groups, equal=True)
    if found is None:
        return
    free = frozenset(unmatched.only_ref), frozenset(unmatched.only_cand)
    for refs, cands in groups:
        for ones, others in _calls(refs, cands, len(found.ref), len(found.cand)):
            for match in _matches(dumps, ones, others, found):
                yield match
                keys = tuple(map(_gradient, match.recipe.keys))
                if _gradient(match.ref) in free[0] and free[1].issuperset(keys):
                    recipe = Recipe(keys=keys, steps=match.recipe.steps, part=match.recipe.part)
                    yield Match(ref=_gradient(match.ref), recipe=recipe, matched_by=match.matched_by)


def _gradient(key: str) -> str:
    return key_of(ACTIVATION_GRAD, split_key(key)[1])


def _proven(dumps: Dumps, groups: Sequence[LayerCalls], *, equal: bool = False) -> _Split | None:
    """Returns how both programs cut the batch; None where no values show that they cut it otherwise.

    Args:
        dumps: The dumps.
        groups: The calls of layers.
        equal: Whether values show it that are the same for some examples.
    """
    inputs = (each.shape[0] for each in dumps.ref.manifest.entries if each.family == INPUT and each.shape)
    examples = max(inputs, default=0)
    for refs, cands in islice(groups, _MOST_READ):
        if _agree_in_turn(dumps, refs, cands):
            return None
        for times in (each for each in range(1, len(refs)) if not len(refs) % each and not len(cands) % each):
            ones, others = refs[::times], cands[::times]
            if min(len(ones), len(others)) < 2 or not (_has_all(dumps.ref, ones) and _has_all(dumps.cand, others)):
                continue
            arrays = [dumps.ref.array(key) for key in ones], [dumps.cand.array(key) for key in others]
            for axis in range(arrays[0][0].ndim):
                found = _cut(*arrays, axis, examples, equal=equal)
                if found is not None:
                    return None if _is_nested(found) else found
    return None


def _agree_in_turn(dumps: Dumps, refs: Sequence[str], cands: Sequence[str]) -> bool:
    """Returns whether calls of a layer have the same norms in turn, as where both programs cut the batch alike."""
    norms = [
        [as_float(source.entry(source.resolve(key)).stats.get("rms", math.nan)) for key in keys]
        for source, keys in ((dumps.ref, refs), (dumps.cand, cands))
    ]
    pairs = list(zip(*norms, strict=False))
    return len(refs) == len(cands) and all(math.isclose(*pair, rel_tol=_SAME) for pair in pairs)


def _has_all(source: DumpSource, keys: Sequence[str]) -> bool:
    return all(source.has_tensor(key) and dtype_class(source.entry(key).dtype) == "float" for key in keys)


def _cut(ones: Sequence[Array], others: Sequence[Array], axis: int, examples: int, *, equal: bool) -> _Split | None:
    """Returns how two programs cut a value along an axis; None where their parts are not those of one value."""
    if {each.ndim for each in (*ones, *others)} != {ones[0].ndim}:
        return None
    shapes = {np.delete(each.shape, axis).tobytes() for each in (*ones, *others)}
    sizes = tuple(each.shape[axis] for each in ones), tuple(each.shape[axis] for each in others)
    if len(shapes) > 1 or not sum(sizes[0]) == sum(sizes[1]) == examples:
        return None
    whole, joined = np.concatenate(ones, axis), np.concatenate(others, axis)
    order = order_of_examples(whole, joined, axis, examples, equal=equal)
    if order is None or np.linalg.norm(joined.take(order, axis) - whole) > _SAME * np.linalg.norm(whole):
        return None
    return _Split(ref=sizes[0], cand=sizes[1], order=order)


def _is_nested(found: _Split) -> bool:
    """Returns whether each part of one program is made of some of the other that follow each other."""
    in_order = found.order == tuple(range(len(found.order)))
    even = len({*found.ref}) == len({*found.cand}) == 1
    counts = len(found.ref), len(found.cand)
    return in_order and (found.ref == found.cand or (even and max(counts) % min(counts) == 0))


def _calls(refs: Sequence[str], cands: Sequence[str], parts: int, others: int) -> Iterator[LayerCalls]:
    """Yields the calls of a layer of all parts, once for each time that it is called for a part."""
    times = len(refs) // parts
    if (len(refs), len(cands)) == (times * parts, times * others):
        yield from ((refs[call::times], cands[call::times]) for call in range(times))


def _matches(dumps: Dumps, refs: Sequence[str], cands: Sequence[str], found: _Split) -> Iterator[Match]:
    shapes = [dumps.ref.entry(key).shape for key in refs], [dumps.cand.entry(key).shape for key in cands]
    for axis in range(len(shapes[0][0])):
        total = sum(each[axis] for each in shapes[0] if len(each) > axis)
        whole = (*shapes[0][0][:axis], total, *shapes[0][0][axis + 1 :])
        own, its = (
            _join(whole, axis, each, sizes) for each, sizes in zip(shapes, (found.ref, found.cand), strict=True)
        )
        if own is not None and its is not None:
            steps = (*its.joining(found.order), *own.parting(()))
            for part, key in enumerate(refs):
                yield Match(ref=key, recipe=Recipe(keys=tuple(cands), steps=steps, part=part), matched_by="iterations")
            return


def _join(whole: tuple[int, ...], axis: int, shapes: Sequence[tuple[int, ...]], sizes: _Sizes) -> PartJoin | None:
    """Returns how parts of some shapes make a value of a shape; None where they are not cut as the batch is."""
    each, rest = divmod(whole[axis], sum(sizes))
    expected = [(*whole[:axis], each * size, *whole[axis + 1 :]) for size in sizes]
    return (
        PartJoin(shape=whole, axis=axis, sizes=tuple(each * size for size in sizes))
        if (not rest and each and expected == [*shapes])
        else None
    )
