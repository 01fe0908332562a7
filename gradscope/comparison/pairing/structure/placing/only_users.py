"""`only_users` pairs values that alone are computed with the same parameters, in whatever order the programs do so.

Two layers that do not read each other may run in either order: the branch of a residual block and its shortcut.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from gradscope.comparison.pairing.matching import Dumps, Pairing, siblings
from gradscope.comparison.pairing.structure.placing.joined_parameters import JoinedParameters
from gradscope.comparison.pairing.structure.placing.value_places import places_of
from gradscope.comparison.pairing.structure.shared_parameters import ParameterNames, shared_parameters
from gradscope.comparison.precision import comparable
from gradscope.dump.interfaces import DumpSource
from gradscope.naming import ACTIVATION, key_of, split_key


def only_users(dumps: Dumps, pairing: Pairing) -> Iterator[tuple[str, str]]:
    """Yields the unmatched keys of activations of equal size that alone are computed with certain parameters.

    Args:
        dumps: The dumps.
        pairing: Their pairing so far; parameters are paired already.
    """
    in_ref, in_cand = shared_parameters(dumps, pairing.matched)
    known, others = in_ref.shared, _by_parameters(dumps.cand, in_cand)
    unmatched, joined = ({*pairing.only_ref}, {*pairing.only_cand}), JoinedParameters(dumps, pairing.matched)
    for params, key in _by_parameters(dumps.ref, in_ref).items():
        other = others.get(params)
        if key is None or other is None or not params <= known:
            continue
        if key not in unmatched[0] or other not in unmatched[1] or not _may_be_same(dumps, key, other):
            continue
        if not joined.are_apart(split_key(key)[1], split_key(other)[1]):
            yield key, other


def _by_parameters(source: DumpSource, names: ParameterNames) -> Mapping[frozenset[str], str | None]:
    """Returns the key of the value that is computed with certain parameters; None where several are."""
    found: dict[frozenset[str], str | None] = {}
    known, several = frozenset(source.keys()), siblings(source.manifest.layers)
    for name, place in places_of(source.manifest.layers, names).items():
        key = key_of(ACTIVATION, name)
        if place.params and key in known and source.entry(key).alias_of is None:
            alone = place.params not in found and name not in several
            found[place.params] = key if alone else None
    return found


def _may_be_same(dumps: Dumps, ref: str, cand: str) -> bool:
    one, other = dumps.ref.entry(ref), dumps.cand.entry(cand)
    return math.prod(one.shape) == math.prod(other.shape) and comparable(one.dtype, other.dtype)
