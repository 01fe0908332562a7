"""`cut_gradients` pairs the gradients of equal values of which one is cut off: no gradient arrives there.

A value may be in a program twice, and the loss may read one of them alone, so that a gradient which arrives in one
program only says little. Where nothing that is compared of what is computed from it is over its tolerance, it needs no
counterpart. Where something is, the gradient was lost on its way, as behind a `stop_gradient`.

One of several outputs of a layer that nothing reads, as the last state of an LSTM, has no gradient to lose: the layer
reads it itself.

`StoppedGradients` tells gradients that a value's copy has from those that the value has lost: a value may be in a
program before and after a `stop_gradient`, and its gradient arrives at the second alone. That is not the gradient of
the other program's value, which is paired with the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from gradscope.comparison.pairing.matching import Dumps, Match, Pairing
from gradscope.comparison.pairing.values.equality import absent_keys
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.layer_graph import consequences, sources_of
from gradscope.naming import ACTIVATION, ACTIVATION_GRAD, INPUT, gradient_family, key_of, split_key, subject_family

#: The reason for which a gradient has no tensor where none arrives.
_CUT: Final = "disconnected"


def cut_gradients(dumps: Dumps, pairing: Pairing, accounted: frozenset[str]) -> Iterator[Match]:
    """Yields matches of the gradients of paired values that arrive in one of the programs alone.

    Args:
        dumps: The dumps.
        pairing: Their pairing.
        accounted: The keys of gradients that need no counterpart.
    """
    free_ref, free_cand = frozenset(pairing.only_ref), frozenset(pairing.only_cand)
    unread = {True: _unread(dumps.ref), False: _unread(dumps.cand)}
    for match in pairing.matched:
        family, name = split_key(match.ref)
        gradient = gradient_family(family) if family in (ACTIVATION, INPUT) else None
        if gradient is None or any(split_key(key)[0] != family for key in match.recipe.keys):
            continue
        key, others = key_of(gradient, name), [key_of(gradient, split_key(each)[1]) for each in match.recipe.keys]
        if key not in free_ref or not free_cand.issuperset(others):
            continue
        cut = _is_cut(dumps.ref, key)
        arriving, lost = (others, [key]) if cut else ([key], others)
        if not unread[cut].isdisjoint(lost):
            continue
        if all(_is_cut(dumps.cand, each) is not cut for each in others) and accounted.isdisjoint(arriving):
            yield Match(ref=key, recipe=replace(match.recipe, keys=tuple(others)), matched_by=match.matched_by)


class StoppedGradients:
    """StoppedGradients finds matches of gradients that stop before they arrive at the value that they seem to be of.

    Args:
        dumps: The dumps.
        matches: The pairs that are known.
    """

    def __init__(self, dumps: Dumps, matches: Iterable[Match]) -> None:
        pairs = [(each.ref, each.cand) for each in matches if len(each.recipe.keys) == 1]
        self._of_ref, self._of_cand = _Lost(dumps.ref), _Lost(dumps.cand)
        self._by_ref, self._by_cand = dict(pairs), {cand: ref for ref, cand in pairs}

    def has(self, match: Match) -> bool:
        """Returns whether a match is of such gradients.

        Args:
            match: A match of two gradients.
        """
        one, other = _value(match.ref), _value(match.cand)
        if one is None or other is None:
            return False
        lost = self._of_cand.behind(self._by_ref.get(one), other)
        return lost or self._of_ref.behind(self._by_cand.get(other), one)


class _Lost:
    """_Lost has the values of a program at which no gradient arrives.

    Args:
        source: The dump of the program.
    """

    def __init__(self, source: DumpSource) -> None:
        self._source, self._absent = source, absent_keys(source)
        self._found: dict[str, frozenset[str]] = {}

    def behind(self, lost: str | None, value: str) -> bool:
        """Returns whether a value is computed from another one at which no gradient arrives.

        Args:
            lost: The key of that; None where there is none.
            value: The key of the value.
        """
        family, name = split_key(lost) if lost is not None and lost != value else ("", "")
        gradient = gradient_family(family)
        if lost is None or gradient is None or key_of(gradient, name) not in self._absent:
            return False
        if lost not in self._found:
            owner = self._source.resolve(lost)
            self._found[lost] = consequences(sources_of(self._source.manifest.layers), owner)
        return self._source.resolve(value) in self._found[lost]


def _value(gradient: str) -> str | None:
    """Returns the key of the value of a gradient."""
    family, name = split_key(gradient)
    subject = subject_family(family)
    return None if subject is None else key_of(subject, name)


def _unread(source: DumpSource) -> frozenset[str]:
    """Returns the keys of gradients of outputs that nothing reads, of layers with others whose gradient arrives."""
    known, layers = frozenset(source.keys()), source.manifest.layers
    named = (key_of(ACTIVATION, name) for layer in layers for name in layer.inputs)
    read = {
        source.resolve(key) for key in (*named, *(key for layer in layers for key in layer.sources)) if key in known
    }
    found: set[str] = set()
    for layer in (layer for layer in layers if len(layer.outputs) > 1):
        gradients = {key_of(ACTIVATION_GRAD, name): key_of(ACTIVATION, name) for name in layer.outputs}
        cut = {key for key in gradients if key in known and _is_cut(source, key)}
        if len(cut) < len(known.intersection(gradients)):
            found |= {key for key in cut if source.resolve(gradients[key]) not in read}
    return frozenset(found)


def _is_cut(source: DumpSource, key: str) -> bool:
    return source.entry(source.resolve(key)).absent == _CUT
