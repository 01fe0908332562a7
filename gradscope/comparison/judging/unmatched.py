"""`unmatched` lists the tensors without a counterpart, and why some of them need none.

A tensor needs no counterpart where its values are compared under another name, or where neither dump has values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gradscope.comparison.judging.judge import Unmatched
from gradscope.comparison.pairing.matching import Dumps, Match, Pairing
from gradscope.dump.interfaces import DumpSource
from gradscope.naming import ACTIVATION, ACTIVATION_GRAD, gradient_family, key_of, split_key


def unmatched(dumps: Dumps, pairing: Pairing) -> tuple[list[Unmatched], list[Unmatched]]:
    """Returns the tensors that only the reference has, and those that only the candidate has."""
    in_ref = {dumps.ref.resolve(match.ref) for match in pairing.matched}
    in_cand = {dumps.cand.resolve(key) for match in pairing.matched for key in match.recipe.keys}
    loop_outputs = {match.ref: match for match in pairing.matched if match.matched_by == "iterations"}
    ref = _PairedDump(dumps.ref, in_ref, loop_outputs)
    cand = _PairedDump(dumps.cand, in_cand, {match.ref: match for match in pairing.inverse})
    missing = [
        Unmatched(entry=ref.source.entry(key), status="missing", why_redundant=_why_redundant(key, ref, cand))
        for key in pairing.only_ref
    ]
    extra = [
        Unmatched(entry=cand.source.entry(key), status="extra", why_redundant=_why_redundant(key, cand, ref))
        for key in pairing.only_cand
    ]
    return missing, extra


@dataclass(frozen=True, slots=True)
class _PairedDump:
    """_PairedDump stores a dump, the keys of its owners that are compared, and its loop outputs' matches by key."""

    source: DumpSource
    compared: set[str]
    loop_outputs: Mapping[str, Match]


def _why_redundant(key: str, own: _PairedDump, other: _PairedDump) -> str:
    """Returns why a tensor needs no counterpart; "" where it does."""
    owner = own.source.resolve(key)
    if reason := own.source.entry(owner).absent:
        return f"there is no tensor on either side ({reason})"
    # A file without layers has one name for a tensor, not one for every layer that returns it unchanged.
    if owner != key and owner in own.compared and not other.source.manifest.layers:
        return f"the same tensor as {owner}, which is compared"
    # A loop output that is also used inside the loop, such as a stacked carry, receives a part of the gradient only.
    totals = _total_gradients(key, own)
    known = frozenset(other.source.keys()) if totals else frozenset[str]()
    if totals and all(each in known and other.source.resolve(each) in other.compared for each in totals):
        return f"a part of what arrives at {', '.join(totals)}, which is compared"
    return ""


def _total_gradients(key: str, own: _PairedDump) -> list[str]:
    """Returns the other dump's keys of the total gradients of which the gradient `key` of a loop output is a part."""
    family, name = split_key(key)
    value = own.loop_outputs.get(key_of(ACTIVATION, name)) if family == ACTIVATION_GRAD else None
    iterations = [] if value is None else map(split_key, value.recipe.keys)
    return [key_of(gradient, name) for family, name in iterations if (gradient := gradient_family(family)) is not None]
