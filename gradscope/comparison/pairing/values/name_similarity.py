"""`NameSimilarity` rates pairs of tensors by their names and by the pairs that are known around them."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import product, takewhile
from typing import Final

from gradscope.comparison.pairing.matching import Match
from gradscope.comparison.pairing.normal_forms import tokens_of
from gradscope.naming import PARAM, STATE, split_key

_SEPARATOR: Final = re.compile(r"[/.]")


class NameSimilarity:
    """`NameSimilarity` rates a match by its names: first by scopes that contain known matches, then by equal ends.

    For two scopes, one in each dump, it counts the fraction of all known matches in either scope that are in both. The
    fraction is 1 for the same block of two programs, whatever the block is called.

    Args:
        matches: The matches that are known.
    """

    def __init__(self, matches: Sequence[Match]) -> None:
        self._cooccurrences: Counter[tuple[str, str]] = Counter()
        self._ref: Counter[str] = Counter()
        self._cand: Counter[str] = Counter()
        self._together: defaultdict[str, set[str]] = defaultdict(set)
        params = [match for match in matches if split_key(match.ref)[0] == PARAM]
        self._of_params = (
            frozenset(scope for match in params for scope in scopes(match.ref)),
            frozenset(scope for match in params for scope in scopes(match.cand)),
        )
        for match in matches:
            ref, cand = self._scopes(match)
            self._cooccurrences.update(product(ref, cand))
            self._ref.update(ref)
            self._cand.update(cand)
            for scope in ref[-1:]:
                self._together[scope].update(cand[-1:])

    def __call__(self, match: Match) -> tuple[float, int]:
        """Returns what scopes have in common, as a sum of fractions, and how many words at the ends of both names."""
        shared = sum(self._share(*each) for each in product(*self._scopes(match)))
        one, other = (tokens_of(split_key(key)[1])[::-1] for key in (match.ref, match.cand))
        return shared, sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))

    def likely(self, ref: str) -> frozenset[str]:
        """Returns the scopes of the candidate that hold known counterparts of what the scope around a tensor holds."""
        return frozenset(each for scope in scopes(ref)[-1:] for each in self._together[scope])

    def _scopes(self, match: Match) -> tuple[list[str], list[str]]:
        ref, cand = self._of_params
        return _layers_around(match.ref, ref), _layers_around(match.cand, cand)

    def _share(self, ref: str, cand: str) -> float:
        cooccurrences = self._cooccurrences[ref, cand]
        return cooccurrences / (self._ref[ref] + self._cand[cand] - cooccurrences) if cooccurrences else 0.0


def scopes(key: str) -> list[str]:
    """Returns the scopes around a tensor, the outermost first."""
    return _scopes_of(split_key(key)[1])


def _layers_around(key: str, of_params: frozenset[str]) -> list[str]:
    """Returns the scopes around a tensor; those around state without its collection, as `norm` of `batch_stats/norm`.

    Args:
        key: The key of the tensor.
        of_params: The scopes around parameters of the same dump.
    """
    found = scopes(key)
    if split_key(key)[0] != STATE or len(found) < 2 or found[0] in of_params:
        return found
    return _scopes_of(_SEPARATOR.split(split_key(key)[1], maxsplit=1)[1])


def _scopes_of(name: str) -> list[str]:
    parts = _SEPARATOR.split(name)
    return ["/".join(parts[:length]) for length in range(1, len(parts))]
