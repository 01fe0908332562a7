"""`by_root` matches tensors whose names differ in the name of the root, which only one of the dumps states.

A dump of an older gradscope has `Net/fc1` where that of a newer one has `fc1`, a layer inside `Net`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from gradscope.comparison.pairing.matching import Dumps, Match, Pairing
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.layer_graph import layers_around
from gradscope.dump.manifest.manifest import Layer
from gradscope.naming import key_of, split_key
from gradscope.naming.numbering import NUMBER
from gradscope.naming.paths import root_of, without_root

#: The number of a call, at the end of a name.
_CALL: Final = re.compile(rf"#{NUMBER}(?=(?:\.{NUMBER})?$)")


def by_root(dumps: Dumps, unmatched: Pairing) -> Iterator[Match]:
    """Yields matches of a name that begins with a root and the name without it of a tensor in this root."""
    for one, other in _across(dumps.ref, unmatched.only_ref, dumps.cand, unmatched.only_cand):
        yield Match.of(one, other, "path")
    for one, other in _across(dumps.cand, unmatched.only_cand, dumps.ref, unmatched.only_ref):
        yield Match.of(other, one, "path")


def _across(
    stating: DumpSource, keys: Sequence[str], leaving_out: DumpSource, others: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """Yields pairs of a key of the dump that states a root and one of the dump that leaves it out."""
    by_path = {layer.path: layer for layer in leaving_out.manifest.layers}
    known = {root_of(layer.path) for layer in stating.manifest.layers} if by_path else set[str]()
    rooted = [key for key in keys if "/" in split_key(key)[1] and root_of(split_key(key)[1]) in known]
    calls = _calls(leaving_out, others, str)
    for same, found in _calls(stating, rooted, without_root).items():
        # Calls of one name in several methods of a root are numbered where the root is left out.
        pairs = zip(found, calls.get(same, ()), strict=False) if len(found) == len(calls.get(same, ())) else ()
        for key, other in pairs:
            if _outermost_around(leaving_out, other, by_path) == root_of(split_key(key)[1]):
                yield key, other


def _calls(source: DumpSource, keys: Iterable[str], named: Callable[[str], str]) -> Mapping[str, Sequence[str]]:
    """Returns keys in execution order by what `named` makes of their names, without the numbers of calls."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for key in sorted(keys, key=lambda key: source.entry(key).site.index):
        family, name = split_key(key)
        found[key_of(family, _CALL.sub("", named(name)))].append(key)
    return found


def _outermost_around(source: DumpSource, key: str, by_path: Mapping[str, Layer]) -> str | None:
    """Returns the scope of the outermost layer around a tensor; None outside of all layers."""
    layer = by_path.get(source.entry(key).site.layer or "")
    return None if layer is None else root_of([layer, *layers_around(layer, by_path)][-1].path)
