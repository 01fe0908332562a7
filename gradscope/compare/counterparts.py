"""Counterparts: the pairing of two dumps as a comparison asks for it, and what nothing is lost without."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from gradscope.compare.judging import Leftover
from gradscope.compare.mapping import MapRule, by_rules
from gradscope.compare.pairing import Dumps, Match, Pairing, Pass, by_name, pair
from gradscope.compare.settling import Mapper, settled
from gradscope.dump.source import DumpSource
from gradscope.naming import Selection, split_key


def counterparts(dumps: Dumps, rules: Sequence[MapRule], selection: Selection, mapper: Mapper) -> Pairing:
    """Every selected tensor of either dump with its counterpart, or without.

    Args:
        dumps: The dumps.
        rules: Rules of a map file.
        selection: Which names take part; a pair does whose names, of either side, are selected and not excluded.
        mapper: How to go through many pairs.

    Returns:
        The pairing; layouts settled.
    """
    whole = pair(dumps, _passes(rules))
    return Pairing(
        matched=settled(dumps, [each for each in whole.matched if selection.wants(*_spellings(each))], mapper),
        only_ref=tuple(key for key in whole.only_ref if selection.wants(*_both(key))),
        only_cand=tuple(key for key in whole.only_cand if selection.wants(*_both(key))),
    )


def require_matches(dumps: Dumps, selection: Selection) -> None:
    """Refuse a selection that selects nothing of either dump.

    Raises:
        UsageError: A pattern selects nothing; the hint names the nearest names there are.
    """
    keys = chain(dumps.ref.keys(), dumps.cand.keys())
    selection.require_matches(chain.from_iterable(map(_both, keys)))


def leftovers(dumps: Dumps, pairing: Pairing) -> tuple[list[Leftover], list[Leftover]]:
    """What the reference alone has, and what the candidate alone has."""
    owned = {dumps.ref.resolve(match.ref) for match in pairing.matched}
    missing = [
        Leftover(entry=dumps.ref.entry(key), status="missing", excuse=_excuse(dumps.ref, key, owned, dumps.cand))
        for key in pairing.only_ref
    ]
    owned = {dumps.cand.resolve(key) for match in pairing.matched for key in match.recipe.keys}
    extra = [
        Leftover(entry=dumps.cand.entry(key), status="extra", excuse=_excuse(dumps.cand, key, owned, dumps.ref))
        for key in pairing.only_cand
    ]
    return missing, extra


def _passes(rules: Sequence[MapRule]) -> Iterator[Pass]:
    yield by_rules(rules)
    yield by_name
    # Most comparisons leave nothing to look for, and what looks takes 50 ms to import.
    from gradscope.compare.execution import by_order  # noqa: PLC0415
    from gradscope.compare.fingerprints import by_fingerprint  # noqa: PLC0415
    from gradscope.compare.samepath import by_path  # noqa: PLC0415

    yield from (by_path, by_order, by_fingerprint)


def _excuse(source: DumpSource, key: str, compared: set[str], other: DumpSource) -> str:
    """Why nothing is lost without a tensor; "" where something may be."""
    own = source.resolve(key)
    if reason := source.entry(own).absent:
        return f"there is no tensor on either side ({reason})"
    # A file without layers has one name for a tensor, not one for every layer that hands it on.
    if own != key and own in compared and not other.manifest.layers:
        return f"the same tensor as {own}, which is compared"
    return ""


def _spellings(match: Match) -> Iterator[str]:
    return chain.from_iterable(map(_both, (match.ref, *match.recipe.keys)))


def _both(key: str) -> tuple[str, str]:
    return key, split_key(key)[1]
