"""Pairing: which tensor of the candidate is the counterpart of which tensor of the reference.

It goes in *passes*, and each looks only at what the passes before it left over:

    map          the rules of a map file, which are somebody's word
    name         the exact key
    path         the same normal form of the name (`paths`); `[L, ...]` against L tensors numbered 0 to L-1
    order        the same place in execution order among the tensors of one operation and shape
    fingerprint  the same values, in whatever layout: statistics that no layout changes find them, the values prove it
    turns        what a loop hands out, as what its turns made, where the other program writes them out one by one

Why rules come first although they are the third thing that people try (2026-11): what is asked for outright is not
overruled by a name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from gradscope.comparison.layout.recipes import Recipe
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.manifest import Entry
from gradscope.naming import ACTIVATION, ACTIVATION_GRAD

#: The pass that found a pair.
MatchedBy: TypeAlias = Literal["map", "name", "path", "order", "fingerprint", "turns"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """A key of the reference and what its counterpart is made of, and by what they were matched."""

    ref: str
    recipe: Recipe
    matched_by: MatchedBy

    @classmethod
    def of(cls, ref: str, cand: str, matched_by: MatchedBy) -> Match:
        """A pair of two tensors as they are."""
        return cls(ref=ref, recipe=Recipe(keys=(cand,)), matched_by=matched_by)

    @property
    def cand(self) -> str:
        """The candidate's key; of several the first."""
        return self.recipe.keys[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairing:
    """How two dumps fit together: every key of the reference, and every tensor of the candidate, is accounted for.

    Attributes:
        matched: The pairs.
        only_ref: Keys without a counterpart in the candidate, in the reference's order.
        only_cand: Keys without a counterpart in the reference, in the candidate's order.
        inverse: Pairs read the other way: a key of the candidate, and what of the reference its counterpart is made of.
    """

    matched: tuple[Match, ...] = ()
    inverse: tuple[Match, ...] = ()
    only_ref: tuple[str, ...]
    only_cand: tuple[str, ...]

    def with_matches(self, found: Iterable[Match]) -> Pairing:
        """The same with more pairs; of several for one tensor of either side the first counts."""
        fresh: dict[str, Match] = {}
        used: dict[str, set[Recipe]] = {}
        for match in found:
            if match.ref not in fresh and all(_leaves(match.recipe, used.get(key, ())) for key in match.recipe.keys):
                fresh[match.ref] = match
                for key in match.recipe.keys:
                    used.setdefault(key, set()).add(match.recipe)
        return replace(
            self,
            matched=(*self.matched, *fresh.values()),
            only_ref=tuple(key for key in self.only_ref if key not in fresh),
            only_cand=tuple(key for key in self.only_cand if key not in used),
        )


def _leaves(recipe: Recipe, others: Iterable[Recipe]) -> bool:
    """Whether other recipes of the same tensor leave something of it: other parts of what the same steps make."""
    return all(
        (other.keys, other.steps) == (recipe.keys, recipe.steps) and other.part != recipe.part for other in others
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Dumps:
    """The two dumps whose tensors are paired."""

    ref: DumpSource
    cand: DumpSource


#: Finds pairs among what a pairing has left over.
Pass: TypeAlias = Callable[[Dumps, Pairing], Iterable[Match]]


def pair(dumps: Dumps, passes: Iterable[Pass]) -> Pairing:
    """Match the tensors of two dumps.

    Args:
        dumps: The dumps.
        passes: What to try, in this order; not drawn any further once a side has nothing left.

    Returns:
        The pairing, its pairs in the reference's order.
    """
    pairing = Pairing(only_ref=dumps.ref.keys(), only_cand=dumps.cand.keys())
    for find in passes:
        pairing = pairing.with_matches(find(dumps, pairing))
        if not pairing.only_ref or not pairing.only_cand:
            break
    order = {key: position for position, key in enumerate(dumps.ref.keys())}
    return replace(pairing, matched=tuple(sorted(pairing.matched, key=lambda match: order[match.ref])))


def by_name(dumps: Dumps, left: Pairing) -> list[Match]:  # noqa: ARG001 - keys are all that it looks at
    """The pass of exact keys."""
    known = frozenset(left.only_cand)
    return [Match.of(key, key, "name") for key in left.only_ref if key in known]


#: Parameters and inputs are not executed, and a foreign file has an order but no operations.
_EXECUTED: Final = (ACTIVATION, ACTIVATION_GRAD)

#: Family, operation, shape and dtype.
_Kind: TypeAlias = tuple[str, str, tuple[int, ...], str]


def by_order(dumps: Dumps, left: Pairing) -> Iterator[Match]:
    """The pass of execution order."""
    ref, cand = _by_kind(dumps.ref, left.only_ref), _by_kind(dumps.cand, left.only_cand)
    for kind, keys in ref.items():
        others = cand.get(kind, [])
        if len(keys) == len(others):
            yield from (Match.of(one, other, "order") for one, other in zip(keys, others, strict=True))


def _by_kind(source: DumpSource, keys: Iterable[str]) -> dict[_Kind, list[str]]:
    found: defaultdict[_Kind, list[tuple[int, str]]] = defaultdict(list)
    for key in keys:
        if (kind := _kind(source.entry(key))) is not None:
            found[kind].append((source.entry(key).site.index, key))
    return {kind: [key for _, key in sorted(each, key=lambda placed: placed[0])] for kind, each in found.items()}


def _kind(entry: Entry) -> _Kind | None:
    operation = entry.site.primitive
    if entry.family not in _EXECUTED or operation is None or entry.alias_of or entry.absent:
        return None
    return entry.family, operation, entry.shape, entry.dtype
