"""`with_nearest_outputs` pairs the numbered outputs of a layer with those of its counterpart that are nearest.

A recurrent cell returns `(h, c)` in one library and `(c, h)` in another. Where all its values differ, their numbers
are no evidence; that one order makes all calls of the layer differ by much less is.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.layout.layouts import relative_error
from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.comparison.precision import dtype_class
from gradscope.naming import split_key
from gradscope.naming.paths import without_iterations, without_occurrence

#: The name of one of several outputs of a layer.
_OUTPUT: Final = re.compile(r"(.+)\.(\d+)")

#: The most outputs of a layer whose orders are tried.
_MOST_OUTPUTS: Final = 4

#: The share of the errors in order that is left in another one that is right.
_LEFT: Final = 0.7

#: The layers that two numbered outputs are of, by their paths without the numbers of calls and iterations.
_Layers: TypeAlias = tuple[str, str]


def with_nearest_outputs(dumps: Dumps, matches: Sequence[Match]) -> list[Match]:
    """Returns plain matches of activations, those of numbered outputs in the order in which they are nearest.

    Args:
        dumps: The dumps.
        matches: The matches that their places suggest.
    """
    calls: defaultdict[_Layers, defaultdict[tuple[str, str], list[Match]]] = defaultdict(lambda: defaultdict(list))
    for match in {each.ref: each for each in reversed(matches)}.values():  # the first of those of one value counts
        names = (split_key(match.ref)[1], split_key(match.cand)[1])
        ref, cand = map(_OUTPUT.fullmatch, names)
        if ref is not None and cand is not None and _are_floats(dumps, match):
            layers = _layer(ref[1]), _layer(cand[1])
            calls[layers][ref[1], cand[1]].append(match)
    exchanged = dict(pair for each in calls.values() for pair in _exchanged(dumps, [*each.values()]))
    return [Match.of(each.ref, exchanged.get(each.ref, each.cand), each.matched_by) for each in matches]


def _are_floats(dumps: Dumps, match: Match) -> bool:
    """Returns whether both values are floating-point numbers: masks and tokens have no nearest."""
    entries = dumps.ref.entry(match.ref), dumps.cand.entry(match.cand)
    return all(dtype_class(each.dtype) == "float" for each in entries)


def _layer(path: str) -> str:
    return without_iterations(without_occurrence(path))


def _exchanged(dumps: Dumps, calls: Sequence[Sequence[Match]]) -> Iterator[tuple[str, str]]:
    """Yields the keys of both dumps of the outputs of one layer that are nearer in another order.

    Args:
        dumps: The dumps.
        calls: The matches of each call.
    """
    count = len(calls[0])
    ordered = [sorted(each, key=lambda match: match.ref) for each in calls]
    if not 1 < count <= _MOST_OUTPUTS or any(len(each) != count for each in ordered):
        return
    errors = [found for each in ordered if (found := _errors(dumps, each)) is not None]
    if len(errors) < len(ordered):
        return
    total = np.sum(errors, axis=0)
    orders = {order: float(sum(total[at, to] for at, to in enumerate(order))) for order in _orders(count)}
    best = min(orders, key=lambda order: orders[order])
    if orders[best] <= _LEFT * orders[*range(count),]:
        yield from ((call[at].ref, call[to].cand) for call in ordered for at, to in enumerate(best))


def _orders(count: int) -> Iterator[tuple[int, ...]]:
    return itertools.permutations(range(count))


def _errors(dumps: Dumps, matches: Sequence[Match]) -> Array | None:
    """Returns the relative errors of all outputs of the candidate against each of the reference; None where unknown.

    An error counts as one at most: values of other kinds are as far apart, whatever their sizes.
    """
    if not all(dumps.ref.has_tensor(each.ref) and dumps.cand.has_tensor(each.cand) for each in matches):
        return None
    refs, cands = [dumps.ref.array(each.ref) for each in matches], [dumps.cand.array(each.cand) for each in matches]
    if len({each.shape for each in (*refs, *cands)}) > 1:
        return None
    found = np.array([[relative_error(one, other) for other in cands] for one in refs])
    return np.minimum(found, 1.0) if np.isfinite(found).all() else None
