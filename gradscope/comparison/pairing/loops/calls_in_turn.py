"""`calls_in_turn` finds which call of a layer in one program is which in the other, where a loop names them otherwise.

A layer that is called in a scan, and once before or behind it, has the calls `norm[0]`, `norm[1]` and `norm`; the same
loop written out has `norm`, `norm#2` and `norm#3`. One called twice in an iteration is `norm[0]#2` there, and `norm#4`.
If both programs call it as often, they do so in turn.

One program may call a layer more often, to look at what it returns, as a diagnostic before the call that counts. Then
the calls that the loss depends on are in turn, where both programs have as many of these.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeAlias

from gradscope.comparison.pairing.matching import Dumps
from gradscope.dump.interfaces import DumpSource
from gradscope.naming import ACTIVATION, ACTIVATION_GRAD, key_of
from gradscope.naming.paths import loops_around, without_iterations, without_occurrence

#: One name of each call, the same in both programs, by its own name.
Calls: TypeAlias = Mapping[str, str]


def calls_in_turn(dumps: Dumps) -> tuple[Calls, Calls]:
    """Returns the names of the calls of layers that both programs call as often, and name otherwise.

    Args:
        dumps: The dumps, whose values are in the order of their computation.

    Returns:
        Those of the reference, and those of the candidate.
    """
    ref, cand = _names(dumps.ref), _names(dumps.cand)
    if ref == cand or not any("#" in name for name in (*ref, *cand)):
        return {}, {}
    of_ref, of_cand = _calls(ref), _calls(cand)
    loops = [{without_occurrence(loop) for name in names if "[" in name for loop in loops_around(name)}
             for names in (ref, cand)]  # fmt: skip
    unread = _unread(dumps.ref), _unread(dumps.cand)
    found: tuple[dict[str, str], dict[str, str]] = {}, {}
    for layer in (layer for layer in of_ref if layer in of_cand):
        sides = of_ref[layer], of_cand[layer]
        if {*sides[0]} == {*sides[1]} or not any("#" in name for name in (*sides[0], *sides[1])):
            continue
        if len(sides[0]) != len(sides[1]):
            sides = _that_count(sides, unread)
        if len(sides[0]) != len(sides[1]):  # the output of a loop has its name, and is no call
            sides = tuple([each for each in side if each.rpartition(".")[0] not in own and each not in own]
                          for side, own in zip(sides, loops, strict=True))  # fmt: skip
        if len(sides[0]) == len(sides[1]):
            for renamed, side in zip(found, sides, strict=True):
                renamed |= {name: f"{layer}[{number}]" for number, name in enumerate(side)}
    return found


def _that_count(sides: tuple[list[str], list[str]], unread: Sequence[Collection[str]]) -> tuple[list[str], list[str]]:
    """Returns the calls of a layer in each program that the loss depends on, where they are as many; else all calls."""
    ref, cand = ([name for name in side if name not in known] for side, known in zip(sides, unread, strict=True))
    return (ref, cand) if len(ref) == len(cand) > 0 else sides


def _unread(source: DumpSource) -> frozenset[str]:
    """Returns the names of the values that the loss does not depend on, whatever numbers they are of."""
    return frozenset(
        entry.name
        for entry in source.manifest.entries
        if entry.family == ACTIVATION_GRAD
        and source.entry(entry.alias_of or key_of(entry.family, entry.name)).absent == "disconnected"
    )


def _names(source: DumpSource) -> list[str]:
    return [entry.name for entry in source.manifest.entries if entry.family == ACTIVATION]


def _calls(names: Iterable[str]) -> dict[str, list[str]]:
    """Returns the names of the calls of each layer, in order, by its name without numbers."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for name in names:
        found[without_iterations(without_occurrence(name))].append(name)
    return found
