"""`ValuesBehind` tells whether what is computed next from both values of a pair agrees."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cache

from gradscope.comparison.diagnosis.refuting.behind.scaled_groups import ScaledGroups
from gradscope.comparison.diagnosis.refuting.lost_parameters import forward_sources
from gradscope.comparison.judging.rows import ComparisonRow
from gradscope.comparison.pairing.matching import Dumps, Match, Pairing
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.layer_graph import NearestKeys, inverted
from gradscope.naming import ACTIVATION, split_key


class ValuesBehind:
    """ValuesBehind knows whether what is computed next from values agrees, but for errors that are made elsewhere.

    Args:
        dumps: The dumps.
        pairing: Their pairing.
        rows: The rows of the pairs, by the reference's keys.
    """

    def __init__(self, dumps: Dumps, pairing: Pairing, rows: Mapping[str, ComparisonRow]) -> None:
        self._dumps = dumps
        values = [match for match in pairing.matched if split_key(match.ref)[0] == ACTIVATION]
        same = {match.ref: rows[match.ref].status == "same" for match in values}
        of_ref = {dumps.ref.resolve(each.ref): each for each in values}
        of_cand = {dumps.cand.resolve(key): each for each in values for key in each.recipe.keys}
        has_direction = cache(ScaledGroups(dumps, rows).are_made_of)
        self._sides = tuple(
            _Next(
                source,
                {owner: same[match.ref] for owner, match in owned.items()},
                lambda owner, owned=owned: has_direction(owned[owner]),
            )
            for source, owned in ((dumps.ref, of_ref), (dumps.cand, of_cand))
        )

    def agrees(self, match: Match) -> bool:
        """Returns whether all that is computed next from both values of a pair agrees, and there is any.

        As in a residual stream, some of it may be computed from another value, too, in which an error begins, or be the
        norm of a sum, whose groups another epsilon multiplies. That the pair differs, too, would be a second fault.

        Args:
            match: The pair.
        """
        keys = [self._dumps.ref.resolve(match.ref)], [self._dumps.cand.resolve(key) for key in match.recipe.keys]
        return all(side.agrees(own) for own, side in zip(keys, self._sides, strict=True))


class _Next:
    """_Next knows the same of one program.

    Args:
        source: The program's dump.
        same: Whether each value is the same in the other program, by the keys of owners.
        has_direction: Returns whether a value, given its owner, has the directions of its counterpart.
    """

    def __init__(self, source: DumpSource, same: Mapping[str, bool], has_direction: Callable[[str], bool]) -> None:
        sources = forward_sources(source)
        self._same, self._has_direction = same, has_direction
        self._read, self._readers = NearestKeys(sources, same), NearestKeys(inverted(sources), same)

    def agrees(self, keys: Collection[str]) -> bool:
        """Returns whether what is computed next from values agrees, but for errors that begin in others."""
        readers = [each for key in keys for each in self._readers.behind(key)]
        differing = [each for each in readers if not self._same[each]]
        return len(differing) < len(readers) and all(self._has_other_error(each, keys) for each in differing)

    def _has_other_error(self, value: str, keys: Collection[str]) -> bool:
        """Returns whether an error of a value begins in it, or in another that it is computed from."""
        waiting, seen = [value], {value}
        while waiting:
            read = self._read.behind(key := waiting.pop())
            differing = [each for each in read if not self._same[each]]
            if read and (not differing or self._is_of_same_sum(key, keys)):
                return True
            others = [each for each in differing if each not in keys and each not in seen]
            seen.update(others)
            waiting += others
        return False

    def _is_of_same_sum(self, key: str, keys: Collection[str]) -> bool:
        """Returns whether a value is computed from others that agree, too, and has the directions of its counterpart.

        A multiple of one term alone turns the sum.
        """
        others = [each for each in self._read.behind(key) if each not in keys]
        return bool(others) and all(map(self._same.__getitem__, others)) and self._has_direction(key)
