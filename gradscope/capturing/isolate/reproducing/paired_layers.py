"""Paired layers are those of a model and of the reference that it is a port of."""

from __future__ import annotations

from collections.abc import Sequence

from gradscope import naming
from gradscope.comparison.compare_dumps import unrefuted
from gradscope.comparison.judging.compare_options import CompareOptions
from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.comparison.pairing.reverse import ReversePairing, with_layouts_of_values
from gradscope.naming.paths import BEFORE


def paired(dumps: Dumps) -> tuple[Sequence[Match], ReversePairing]:
    """Returns the pairs of two dumps, and the reference's tensors by the candidate's keys.

    A dump is paired with itself by name.
    """
    if dumps.ref is dumps.cand:
        same = [Match.of(key, key, "name") for key in dumps.cand.keys()]  # noqa: SIM118 - no mapping
        return same, ReversePairing(dumps, same)
    pairing = unrefuted(dumps, CompareOptions()).pairing
    matched = tuple(with_layouts_of_values(dumps, pairing.matched))
    return matched, ReversePairing(dumps, matched, pairing.inverse)


def own_name(name: str, dumps: Dumps, matched: Sequence[Match]) -> str:
    """Returns a layer's name in the candidate, where only the reference has one of that name.

    Args:
        name: The name, with `before` in front of it for the code before the layer.
        dumps: The reference's dump and the candidate's.
        matched: The pairs of their tensors.
    """
    path = name.removeprefix(f"{naming.ACTIVATION}/").removeprefix(BEFORE)
    if path in {layer.path for layer in dumps.cand.manifest.layers}:
        return name
    for match in matched:
        family, tensor = naming.split_key(match.ref)
        if family == naming.ACTIVATION and path in (tensor, dumps.ref.entry(dumps.ref.resolve(match.ref)).site.layer):
            layer = dumps.cand.entry(dumps.cand.resolve(match.recipe.keys[0])).site.layer
            return name if layer is None else f"{BEFORE if name.startswith(BEFORE) else ''}{layer}"
    return name
