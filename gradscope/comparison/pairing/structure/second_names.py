"""`by_second_name` matches the second names of tensors that have one first name in both dumps.

A module that returns what its last layer returns is a second name of that tensor. Where its class has another name in
the candidate, nothing else about it differs. In a port, whose names all differ, second names need no counterpart.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from gradscope.comparison.pairing.matching import Dumps, Match, Pairing
from gradscope.dump.interfaces import DumpSource


def by_second_name(dumps: Dumps, unmatched: Pairing) -> Iterator[Match]:
    """Yields matches of the second names of tensors that are matched by name, in order, where both have as many."""
    ref, cand = _second_names(dumps.ref, unmatched.only_ref), _second_names(dumps.cand, unmatched.only_cand)
    for match in unmatched.matched if ref and cand else ():
        names, others = ref.get(match.ref, ()), cand.get(match.cand, ())
        if match.matched_by == "name" and len(names) == len(others):
            yield from (Match.of(one, other, "order") for one, other in zip(names, others, strict=True))


def _second_names(source: DumpSource, keys: Iterable[str]) -> Mapping[str, Sequence[str]]:
    """Returns the keys that are other names of a tensor, by its own key."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for key in keys:
        if (owner := source.resolve(key)) != key:
            found[owner].append(key)
    return found
