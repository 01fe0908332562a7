"""`by_owner_name` matches the activations of layers of which one dump says no more than the names.

What another program has written, such as a script with NumPy, has tensors and states no layers. There `activation/c2`
is of the layer that has `param/c2.W`, and its counterpart is of the layer that alone has the counterparts of these
parameters. A name does not say whether that is the value in front of an activation function or behind it. So only
layers are matched whose parameters have other gradients: then something is wrong, and the values show where.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from gradscope.arrays.widening import as_reals
from gradscope.comparison.pairing.matching import Dumps, Match, Pairing
from gradscope.dump.interfaces import DumpSource
from gradscope.naming import ACTIVATION, ACTIVATION_GRAD, PARAM, PARAM_GRAD, key_of, split_key

#: What is between the name of a layer and that of its parameter.
_BOUNDARY: Final = re.compile(r"[./](?=[^./]+$)")

#: The least relative error of gradients that are other ones, whatever the precision of the programs.
_OTHER: Final = 1e-2


def by_owner_name(dumps: Dumps, unmatched: Pairing) -> Iterator[Match]:
    """Yields matches of the activations, and their gradients, of layers that have paired parameters with others."""
    if dumps.ref.manifest.layers and dumps.cand.manifest.layers:
        return
    params = {each.ref: each for each in unmatched.matched if split_key(each.ref)[0] == PARAM}
    counterparts = {key: each.cand for key, each in params.items() if len(each.recipe.keys) == 1}
    theirs: defaultdict[frozenset[str], list[str]] = defaultdict(list)
    for value, owned in _owners(dumps.cand).items():
        theirs[owned].append(value)
    free = frozenset(unmatched.only_ref), frozenset(unmatched.only_cand)
    gradients = {each.ref: each for each in unmatched.matched if split_key(each.ref)[0] == PARAM_GRAD}
    for value, owned in _owners(dumps.ref).items():
        others = theirs[frozenset(counterparts[key] for key in owned)] if counterparts.keys() >= owned else ()
        if len(others) != 1 or not _is_same_size(dumps, value, others[0]):
            continue
        if any(_differ(dumps, gradients.get(_of(PARAM_GRAD, key))) for key in owned):
            for family in (ACTIVATION, ACTIVATION_GRAD):
                one, other = _of(family, value), _of(family, others[0])
                if one in free[0] and other in free[1]:
                    yield Match.of(one, other, "order")


def _owners(source: DumpSource) -> Mapping[str, frozenset[str]]:
    """Returns the parameters of each layer by its only activation, as layers state them, or else names."""
    known = frozenset(source.keys())
    if source.manifest.layers:
        found = {
            key_of(ACTIVATION, layer.outputs[0]): frozenset(key_of(PARAM, name) for name in layer.params)
            for layer in source.manifest.layers
            if len(layer.outputs) == 1 and layer.params
        }
        return {key: owned for key, owned in found.items() if key in known}
    owned: defaultdict[str, set[str]] = defaultdict(set)
    for family, name in map(split_key, known):
        layer, *leaf = _BOUNDARY.split(name)
        if family == PARAM and leaf and key_of(ACTIVATION, layer) in known:
            owned[key_of(ACTIVATION, layer)].add(key_of(PARAM, name))
    return {key: frozenset(keys) for key, keys in owned.items()}


def _of(family: str, key: str) -> str:
    return key_of(family, split_key(key)[1])


def _is_same_size(dumps: Dumps, ref: str, cand: str) -> bool:
    one, other = dumps.ref.entry(ref), dumps.cand.entry(cand)
    return sorted(one.shape) == sorted(other.shape)


def _differ(dumps: Dumps, match: Match | None) -> bool:
    """Returns whether a parameter has another gradient in both programs; False where that is not known."""
    if match is None or not dumps.ref.has_tensor(match.ref) or not all(map(dumps.cand.has_tensor, match.recipe.keys)):
        return False
    one, other = map(as_reals, (dumps.ref.array(match.ref), match.recipe.array(dumps.cand)))
    # Before layouts are known, the sizes of gradients tell.
    sizes = np.linalg.norm(one), np.linalg.norm(other)
    return bool(abs(sizes[0] - sizes[1]) > _OTHER * max(sizes))
