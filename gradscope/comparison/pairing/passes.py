"""Counterparts: the pairing of two dumps as a comparison asks for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from gradscope.comparison.pairing.by_rules import MapRule, by_rules
from gradscope.comparison.pairing.layout_inference import Mapper, settled
from gradscope.comparison.pairing.matching import Dumps, Match, Pairing, Pass, by_name, pair
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
    whole = _with_turns(dumps, pair(dumps, _passes(rules)))
    return Pairing(
        matched=settled(dumps, [each for each in whole.matched if selection.wants(*_spellings(each))], mapper),
        inverse=tuple(each for each in whole.inverse if selection.wants(*_spellings(each))),
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


def _passes(rules: Sequence[MapRule]) -> Iterator[Pass]:
    yield by_rules(rules)
    yield by_name
    # Most comparisons leave nothing to look for, and what looks takes 50 ms to import.
    from gradscope.comparison.pairing.by_path import by_path  # noqa: PLC0415
    from gradscope.comparison.pairing.by_values import by_fingerprint  # noqa: PLC0415
    from gradscope.comparison.pairing.matching import by_order  # noqa: PLC0415

    yield from (by_path, by_order, by_fingerprint)


def _with_turns(dumps: Dumps, found: Pairing) -> Pairing:
    """The pairing with what loops hand out, in either dump."""
    if not found.only_ref and not found.only_cand:
        return found
    from gradscope.comparison.pairing.by_iterations import through_turns  # noqa: PLC0415 - as for the passes

    return through_turns(dumps, found)


def _spellings(match: Match) -> Iterator[str]:
    return chain.from_iterable(map(_both, (match.ref, *match.recipe.keys)))


def _both(key: str) -> tuple[str, str]:
    return key, split_key(key)[1]
