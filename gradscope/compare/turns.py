"""The pass of turns: what a loop hands out and what its turns are handed, where the other program has no loop.

A loop under a scope is a layer (`block`) around its turns (`block[0]`, `block[1]`, ...). In a program that writes the
turns out one by one, they are layers like any other, and nothing stands around them:

- What a loop *hands out* is what its turns made: the carry of the last, or a stack of what each made. It is compared
  with what the turns' own outputs were paired with.
- What a loop *hands in*, to each turn its slice of a stack, is cut out there by operations of their own. They are
  compared with that slice of what the stack was paired with.

Names only suggest what a tensor is made of; the values prove it: in its own dump they have to be equal. So what is
really missing is not taken for a loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from gradscope.compare.evidence import evidence_of
from gradscope.compare.loops import Loops
from gradscope.compare.pairing import Match
from gradscope.compare.recipes import Recipe
from gradscope.compare.sides import StoredSide, counterpart
from gradscope.dump.source import DumpSource


def by_turns(source: DumpSource, left: Iterable[str], counterparts: Mapping[str, str]) -> Iterator[Match]:
    """The pass of turns.

    Args:
        source: A dump, of either side.
        left: Keys that are left over of it.
        counterparts: The other dump's keys for what lies in both as it is, by keys of owners.

    Yields:
        A key of the dump, and what its counterpart is made of on the other side.

    Raises:
        DumpError: The dump is damaged.
    """
    loops = Loops(source)
    for key in left:
        own = source.resolve(key)
        for recipe in loops.recipes(own):
            if all(part in counterparts for part in recipe.keys) and _makes(source, recipe, own):
                parts = tuple(counterparts[part] for part in recipe.keys)
                yield Match(ref=key, recipe=replace(recipe, keys=parts), matched_by="turns")
                break


def _makes(source: DumpSource, recipe: Recipe, key: str) -> bool:
    """Whether a recipe gives the very values of a tensor of the same dump."""
    if source.entry(key).absent is not None:
        return False
    found = evidence_of(StoredSide(source=source, key=key), counterpart(source, recipe), (0.0, 0.0))
    # Hashes prove that two tensors are equal, no other statistic does.
    return found.needed == 0.0 and (found.bit_equal is True or "rel_l2" in found.metrics)
