"""`by_updated_state` matches auxiliary outputs by the state that they update, and what is left of a layer's state.

Running statistics come back under the names of the parameters or state that they replace, or under names of their own.
Where those of two programs differ, as by another momentum, the changes show which are the same: both move from the
state that they have in common towards the statistics of one batch, as far as the momentum says. What is left of a layer
whose other output or state is known, such as the variance beside a mean, is matched with what is left there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Final

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.pairing.matching import Dumps, Match, Pairing, is_of_jax
from gradscope.comparison.pairing.normal_forms import NamesWithin
from gradscope.comparison.precision import dtype_class
from gradscope.dump.interfaces import DumpSource
from gradscope.naming import AUX, PARAM, STATE, key_of, split_key

#: The fewest elements whose changes show anything: those of two look like multiples of each other soon.
_FEWEST: Final = 4

#: How far changes that are multiples of each other may be from that, by their cosine, and the least that is a change.
_PARALLEL: Final = 1e-6
_LEAST_CHANGE: Final = 1e-5

#: The most outputs of one shape whose changes are compared with each other.
_MOST: Final = 256


def by_updated_state(dumps: Dumps, unmatched: Pairing) -> Iterator[Match]:
    """Yields matches of auxiliary outputs that update the same state, and of state beside other state."""
    found = list(_beside(dumps, unmatched, STATE))
    found += _by_name(unmatched.with_matches(found))
    found += _by_change(dumps, unmatched.with_matches(found))
    yield from found
    yield from _beside(dumps, unmatched.with_matches(found), AUX)


def _by_name(unmatched: Pairing) -> Iterator[Match]:
    """Yields matches of outputs that have the names of paired parameters or state."""
    names = {
        split_key(match.ref)[1]: split_key(match.cand)[1]
        for match in unmatched.matched
        if split_key(match.ref)[0] in (PARAM, STATE) and len(match.recipe.keys) == 1
    }
    outputs = NamesWithin(split_key(key)[1] for key in unmatched.only_cand if split_key(key)[0] == AUX)
    given = NamesWithin(names)
    for key in (key for key in unmatched.only_ref if split_key(key)[0] == AUX):
        for name in given.of(split_key(key)[1]):
            updated = outputs.of(names[name])
            if len(updated) == 1:
                yield Match.of(key, key_of(AUX, updated[0]), "path")


def _by_change(dumps: Dumps, unmatched: Pairing) -> Iterator[Match]:
    """Yields matches of outputs that move paired parameters or state in one direction, by whatever factor."""
    refs, cands = _outputs(dumps.ref, unmatched.only_ref), _outputs(dumps.cand, unmatched.only_cand)
    for shape in refs.keys() & cands.keys():
        if max(len(refs[shape]), len(cands[shape])) > _MOST:
            continue
        updated, others = _stacked(dumps.ref, refs[shape]), _stacked(dumps.cand, cands[shape])
        for match in _of_shape(dumps, unmatched.matched, shape):
            before, other = dumps.ref.array(match.ref), match.recipe.array(dumps.cand)
            alike = _directions(updated, before) @ _directions(others, other).T > 1 - _PARALLEL
            for one, two in np.argwhere(alike).tolist():
                if alike[one].sum() == alike[:, two].sum() == 1:
                    yield Match.of(refs[shape][one], cands[shape][two], "order")


def _outputs(source: DumpSource, keys: Iterable[str]) -> Mapping[tuple[int, ...], Sequence[str]]:
    """Returns the auxiliary outputs among some tensors that are numbers of several elements, by their shape."""
    found: defaultdict[tuple[int, ...], list[str]] = defaultdict(list)
    for key in (key for key in keys if split_key(key)[0] == AUX):
        entry = source.entry(key)
        if prod(entry.shape) >= _FEWEST and dtype_class(entry.dtype) == "float" and source.has_tensor(key):
            found[entry.shape].append(key)
    return found


def _of_shape(dumps: Dumps, matches: Iterable[Match], shape: tuple[int, ...]) -> Iterator[Match]:
    """Yields the pairs of parameters and state of a shape that outputs may update."""
    for match in matches:
        if split_key(match.ref)[0] in (PARAM, STATE) and dumps.ref.entry(match.ref).shape == shape:
            known = dumps.ref.has_tensor(match.ref) and all(map(dumps.cand.has_tensor, match.recipe.keys))
            if known and match.recipe.array(dumps.cand).shape == shape:
                yield match


def _stacked(source: DumpSource, keys: Iterable[str]) -> Array:
    return np.stack([source.array(key).ravel() for key in keys]).astype(np.float64)


def _directions(updated: Array, before: Array) -> Array:
    """Returns by how much each of some outputs differs from what it may update, of length one; zero where it does not.

    Args:
        updated: The outputs, `[outputs, elements]`.
        before: What they may update.
    """
    change = updated - before.ravel().astype(np.float64)
    length, size = np.linalg.norm(change, axis=1, keepdims=True), np.linalg.norm(updated, axis=1, keepdims=True)
    return np.divide(change, length, out=np.zeros_like(change), where=length > _LEAST_CHANGE * size)


def _beside(dumps: Dumps, unmatched: Pairing, family: str) -> Iterator[Match]:
    """Yields matches of the only tensors of one shape that are left beside others of the family that are matched."""
    left = _by_scope(dumps.ref, unmatched.only_ref, family), _by_scope(dumps.cand, unmatched.only_cand, family)
    known = (match for match in unmatched.matched if split_key(match.ref)[0] == family)
    scopes = dict.fromkeys((match.ref.rpartition("/")[0], match.cand.rpartition("/")[0]) for match in known)
    used: set[str] = set()
    for scope, other_scope in scopes:
        others = left[1].get(other_scope, {})
        for shape, keys in left[0].get(scope, {}).items():
            found = (*keys, *others.get(shape, ()))
            # Where values have paired the state of one layer with that of several, the first of them has what is left.
            if len(keys) == 1 and len(found) == 2 and used.isdisjoint(found) and _may_be_one(dumps, *found):
                used |= {*found}
                yield Match.of(*found, "order")


def _may_be_one(dumps: Dumps, one: str, other: str) -> bool:
    """Returns whether two tensors may be one: each library counts its updates from a number of its own."""
    kinds = dtype_class(dumps.ref.entry(one).dtype), dtype_class(dumps.cand.entry(other).dtype)
    return kinds[0] == kinds[1] and (kinds[0] != "integer" or is_of_jax(dumps.ref) is is_of_jax(dumps.cand))


def _by_scope(
    source: DumpSource, keys: Iterable[str], family: str
) -> Mapping[str, Mapping[tuple[int, ...], Sequence[str]]]:
    """Returns the tensors of a family among some by the scope around them, and by their shape."""
    found: defaultdict[str, defaultdict[tuple[int, ...], list[str]]] = defaultdict(lambda: defaultdict(list))
    for key in (key for key in keys if split_key(key)[0] == family):
        found[key.rpartition("/")[0]][source.entry(key).shape].append(key)
    return found
