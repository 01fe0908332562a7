"""Pairing: which tensor of the candidate is the counterpart of which tensor of the reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

#: The pass that found a pair.
MatchedBy: TypeAlias = Literal["name"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """A pair of keys, and by what they were matched."""

    ref: str
    cand: str
    matched_by: MatchedBy


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairing:
    """How two dumps fit together: every key of either side appears exactly once.

    Attributes:
        matched: The pairs, in the reference's order.
        only_ref: Keys without a counterpart in the candidate, in the reference's order.
        only_cand: Keys without a counterpart in the reference, in the candidate's order.
    """

    matched: tuple[Match, ...]
    only_ref: tuple[str, ...]
    only_cand: tuple[str, ...]


def pair(ref: Sequence[str], cand: Sequence[str]) -> Pairing:
    """Match two dumps by exact keys.

    Args:
        ref: The reference's keys, each once.
        cand: The candidate's.

    Returns:
        The pairing.
    """
    in_ref, in_cand = frozenset(ref), frozenset(cand)
    return Pairing(
        matched=tuple(Match(ref=key, cand=key, matched_by="name") for key in ref if key in in_cand),
        only_ref=tuple(key for key in ref if key not in in_cand),
        only_cand=tuple(key for key in cand if key not in in_ref),
    )
