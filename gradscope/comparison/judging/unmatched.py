"""Leftovers: what one dump alone has, and where nothing is lost without it, why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gradscope.comparison.judging.judge import Leftover
from gradscope.comparison.pairing.matching import Dumps, Match, Pairing
from gradscope.dump.interfaces import DumpSource
from gradscope.naming import ACTIVATION, ACTIVATION_GRAD, gradient_family, key_of, split_key


def leftovers(dumps: Dumps, pairing: Pairing) -> tuple[list[Leftover], list[Leftover]]:
    """What the reference alone has, and what the candidate alone has."""
    in_ref = {dumps.ref.resolve(match.ref) for match in pairing.matched}
    in_cand = {dumps.cand.resolve(key) for match in pairing.matched for key in match.recipe.keys}
    ref = _Side(dumps.ref, in_ref, {match.ref: match for match in pairing.matched if match.matched_by == "turns"})
    cand = _Side(dumps.cand, in_cand, {match.ref: match for match in pairing.inverse})
    missing = [
        Leftover(entry=ref.source.entry(key), status="missing", excuse=_excuse(key, ref, cand))
        for key in pairing.only_ref
    ]
    extra = [
        Leftover(entry=cand.source.entry(key), status="extra", excuse=_excuse(key, cand, ref))
        for key in pairing.only_cand
    ]
    return missing, extra


@dataclass(frozen=True, slots=True)
class _Side:
    """A dump, the keys of its owners that are compared, and by key what was found by its turns."""

    source: DumpSource
    compared: set[str]
    by_turns: Mapping[str, Match]


def _excuse(key: str, own: _Side, other: _Side) -> str:
    """Why nothing is lost without a tensor; "" where something may be."""
    owner = own.source.resolve(key)
    if reason := own.source.entry(owner).absent:
        return f"there is no tensor on either side ({reason})"
    # A file without layers has one name for a tensor, not one for every layer that hands it on.
    if owner != key and owner in own.compared and not other.source.manifest.layers:
        return f"the same tensor as {owner}, which is compared"
    # What a loop hands out may be used inside it, too, as a carry is that is also stacked.
    whole = _sums(key, own)
    known = frozenset(other.source.keys()) if whole else frozenset[str]()
    if whole and all(each in known and other.source.resolve(each) in other.compared for each in whole):
        return f"a part of what arrives at {', '.join(whole)}, which is compared"
    return ""


def _sums(key: str, own: _Side) -> list[str]:
    """The other dump's gradients with respect to a value under all of its names, by the key of one's gradient."""
    family, name = split_key(key)
    value = own.by_turns.get(key_of(ACTIVATION, name)) if family == ACTIVATION_GRAD else None
    parts = [] if value is None else map(split_key, value.recipe.keys)
    return [key_of(gradient, name) for family, name in parts if (gradient := gradient_family(family)) is not None]
