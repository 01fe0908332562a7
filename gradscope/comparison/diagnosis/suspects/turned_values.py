"""`turned_value` finds a value that agrees only in an order which nothing else in the programs has.

Of two values with the same elements in another order, the order may be the layout of a port, or the fault: tokens that
one program reads column by column, or a bias between positions whose sign is wrong. A layout of a port is borne out by
what is computed from the value, by the kernels that read it, or by other values in the same layout. Where the programs
have one shape for the value, so that no layout is called for, nothing bears its order out, and what reads it differs,
it is suspected. An input is such a value, too, before all that is computed from it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from gradscope.comparison.diagnosis.suspects.turned_parameters import is_turned
from gradscope.comparison.judging.rows import ComparisonRow
from gradscope.comparison.layout.recipe_steps import Reorder, Transpose
from gradscope.comparison.pairing.matching import Dumps, Match, Pairing
from gradscope.dump.manifest.layer_graph import Sources, inverted, nearest, sources_of
from gradscope.naming import ACTIVATION, INPUT, PARAM, key_of, split_key


def turned_value(
    dumps: Dumps, pairing: Pairing, rows: Sequence[ComparisonRow], first: ComparisonRow
) -> ComparisonRow | None:
    """Returns the row of the first value that has such an order, and from which a divergence is computed, or None.

    Args:
        dumps: The dumps.
        pairing: Their pairing.
        rows: All rows.
        first: The first value over tolerance.
    """
    sources, known = sources_of(dumps.ref.manifest.layers), frozenset(dumps.ref.keys())
    start = key_of(first.family, first.name)
    matches = {match.ref: match for match in pairing.matched}
    if start not in known:
        return None
    by_owner: dict[str, ComparisonRow] = {}
    for row in rows:
        key = key_of(row.family, row.name)
        if row.family in (ACTIVATION, INPUT) and row.compared and key in matches:
            by_owner.setdefault(dumps.ref.resolve(key), row)
    agreeing = {owner for owner, row in by_owner.items() if row.status == "same"}
    turned = {owner for owner in agreeing if is_turned(dumps, _match(matches, by_owner, owner))}
    own, readers = matches.get(start), None
    owner = dumps.ref.resolve(start)
    # A layer that returns what it reads has a second name for that: the first name may be that of the turned value.
    for key in (owner, *nearest(sources, owner, by_owner)):
        steps = _match(matches, by_owner, key).recipe.steps if key in turned else ()
        if not steps or (own is not None and own.recipe.steps == steps):
            continue
        alike = {each for each in agreeing if _match(matches, by_owner, each).recipe.steps == steps}
        chain = _before(sources, key, alike, by_owner)
        readers = inverted(sources) if readers is None else readers
        borne_out = any(
            each in agreeing and each not in chain for value in chain for each in nearest(readers, value, by_owner)
        )
        if chain == alike and alike <= turned and not borne_out and not _has_kernels(dumps, matches, {*chain, start}):
            return min((by_owner[each] for each in chain), key=lambda row: (row.family == ACTIVATION, row.index))
    return None


def _match(matches: Mapping[str, Match], by_owner: Mapping[str, ComparisonRow], owner: str) -> Match:
    row = by_owner[owner]
    return matches[key_of(row.family, row.name)]


def _before(sources: Sources, key: str, alike: Collection[str], compared: Collection[str]) -> set[str]:
    """Returns a value, and those in the same order that it is computed from."""
    found, waiting = {key}, [key]
    while waiting:
        fresh = [each for each in nearest(sources, waiting.pop(), compared) if each in alike and each not in found]
        found.update(fresh)
        waiting += fresh
    return found


def _has_kernels(dumps: Dumps, matches: Mapping[str, Match], keys: Collection[str]) -> bool:
    """Returns whether a layer that computes one of some values has a kernel or a bias in another layout.

    One of two axes may only be transposed, so that it has three axes, blocks in another order, as heads are, or parts
    of its axes in another order, as channels and positions are in front of an image.
    """
    names = {split_key(key)[1] for key in keys}
    params = (name for layer in dumps.ref.manifest.layers if names.intersection(layer.outputs) for name in layer.params)
    pairs = (matches[key] for name in params if (key := key_of(PARAM, name)) in matches)
    return any(
        match.recipe.steps
        and len(match.recipe.keys) == 1
        and (
            any(isinstance(step, Reorder) for step in match.recipe.steps)
            or any(isinstance(step, Transpose) and len(step.axes) > _axes(dumps, match) for step in match.recipe.steps)
            or len(dumps.ref.entry(match.ref).shape) == len(dumps.cand.entry(match.cand).shape) > 2
        )
        for match in pairs
    )


def _axes(dumps: Dumps, match: Match) -> int:
    return max(len(dumps.ref.entry(match.ref).shape), len(dumps.cand.entry(match.cand).shape))
