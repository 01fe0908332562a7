"""`batch_parts` finds the layers that one program calls for the whole batch, and the other for each part of it.

A program that accumulates gradients calls its layers again for each part of the batch, in a loop of Python (`attn`,
`attn#2`) or in a scan (`attn[0]`, `attn[1]`). Under `vmap` over the parts, it calls them once, and the value has an
axis of the parts.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Protocol, Self, TypeAlias, TypeVar

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.comparison.pairing.normal_forms import spelt, tokens_of
from gradscope.dump.interfaces import DumpSource
from gradscope.naming import ACTIVATION, PARAM, key_of, split_key
from gradscope.naming.paths import without_iterations, without_occurrence

_KindT = TypeVar("_KindT", bound=Hashable)


class PartsRule(Protocol[_KindT]):
    """A `PartsRule` says what can be a part of what, and how far values are from what their parts make."""

    def kind(self, source: DumpSource, key: str) -> _KindT:
        """Returns what of a tensor decides what it can be a part of, as its shape."""
        ...

    def fits(self, whole: _KindT, parts: Sequence[_KindT]) -> bool:
        """Returns whether a value of one kind can have parts of others, in order."""
        ...

    def amount(self, source: DumpSource, key: str) -> float:
        """Returns what adds up over parts in some way; nan where it is not known."""
        ...

    def errors(self, wholes: Array, parts: Array) -> Array:
        """Returns how far the amounts of values, `[n]`, are from those of their parts, `[n, parts]`; 0 unless known."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchParts:
    """BatchParts stores a value of one program, and those that the other has of parts of the batch.

    Attributes:
        of_ref: Whether the reference has the value, and the candidate the parts.
        holder: The dump that has the value.
        whole: Its key.
        other: The other dump.
        parts: The keys of the parts, in order; one where a value has all parts along an axis of its own.
    """

    of_ref: bool
    holder: DumpSource
    whole: str
    other: DumpSource
    parts: tuple[str, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the value."""
        return self.holder.entry(self.whole).shape

    @property
    def part_shapes(self) -> list[tuple[int, ...]]:
        """The shapes of its parts."""
        return [self.other.entry(part).shape for part in self.parts]

    def keys(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Returns the keys of the reference, and those of the candidate."""
        return ((self.whole,), self.parts) if self.of_ref else (self.parts, (self.whole,))


#: The keys of the activations that the calls of one layer made, in order: those of the reference, and the candidate's.
LayerCalls: TypeAlias = tuple[Sequence[str], Sequence[str]]

#: The reference's names of layers by the candidate's, in their normal form.
LayerNames: TypeAlias = Mapping[str, str]


def batch_parts(
    dumps: Dumps,
    ref: Sequence[str],
    cand: Sequence[str],
    rule: PartsRule[_KindT],
    renamed: LayerNames | None = None,
) -> Iterator[BatchParts]:
    """Yields activations with their parts.

    Both programs call a layer some times for each part of the batch, which is all of it or, as four examples of eight
    have parts of two, a part itself. How often is not known: it is what fits the values best.

    Args:
        dumps: The dumps.
        ref: Keys of the reference.
        cand: Keys of the candidate.
        rule: What can be a part of what, and how far values are from what their parts make.
        renamed: The names of layers in both programs; None where they are the same.
    """
    taken = set[str](), set[str]()
    for calls in layer_calls(ref, cand, renamed, taken):
        for found in _in_best_order(dumps, *calls, rule):
            for side, keys in zip(taken, found.keys(), strict=True):
                side.update(keys)
            yield found


def layer_calls(
    ref: Sequence[str],
    cand: Sequence[str],
    renamed: LayerNames | None = None,
    taken: tuple[Collection[str], Collection[str]] = ((), ()),
) -> Iterator[LayerCalls]:
    """Yields the calls of each layer of both programs.

    Args:
        ref: Keys of the reference.
        cand: Keys of the candidate.
        renamed: The names of layers in both programs; None where they are the same.
        taken: Keys of both that are left out, and may become more on the way.
    """
    # The iterations of a scan over layers are numbers of layers, and those of a scan over parts of the batch are none.
    for layer_of in _LAYERS:
        of_ref = _calls((key for key in ref if key not in taken[0]), layer_of)
        of_cand = _calls((key for key in cand if key not in taken[1]), layer_of)
        if renamed is not None:
            of_cand = {renamed[name]: keys for name, keys in of_cand.items() if name in renamed}
        yield from ((refs, of_cand[name]) for name, refs in of_ref.items() if name in of_cand)


def renamed_layers(dumps: Dumps, matches: Iterable[Match]) -> LayerNames:
    """Returns the names of layers that alone use a parameter in both programs.

    Args:
        dumps: The dumps.
        matches: Their pairs.
    """
    of_ref, of_cand = _users(dumps.ref), _users(dumps.cand)
    found: dict[str, set[str]] = defaultdict(set)
    for match in (each for each in matches if split_key(each.ref)[0] == PARAM and len(each.recipe.keys) == 1):
        for one, other in zip(of_ref[match.ref], of_cand[match.cand], strict=True):
            if len(one) == len(other) == 1:
                found[next(iter(other))] |= one
    return {name: next(iter(names)) for name, names in found.items() if len(names) == 1}


def _users(source: DumpSource) -> Mapping[str, Sequence[set[str]]]:
    """Returns the names of the innermost layers that use each parameter, in both forms of `layer_calls`."""
    composites = {layer.parent for layer in source.manifest.layers}
    found: defaultdict[str, list[set[str]]] = defaultdict(lambda: [set() for _ in _LAYERS])
    for layer in source.manifest.layers:
        outputs = layer.outputs if layer.path not in composites and len(layer.outputs) == 1 else ()
        for name in layer.params if outputs else ():
            for names, layer_of in zip(found[key_of(PARAM, name)], _LAYERS, strict=True):
                names |= {spelt(tokens_of(layer_of(each))) for each in outputs}
    return found


def _of_all_iterations(name: str) -> str:
    return without_iterations(without_occurrence(name))


#: What makes the name of a layer of that of a call: iterations of a loop are layers, or calls as well.
_LAYERS: Final = (without_occurrence, _of_all_iterations)


def _calls(keys: Iterable[str], layer_of: Callable[[str], str]) -> dict[str, list[str]]:
    """Returns the keys of the activations that the calls of a layer made, in order, by the normal form of its name."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for family, name, key in ((*split_key(key), key) for key in keys):
        if family == ACTIVATION:
            found[spelt(tokens_of(layer_of(name)))].append(key)
    return found


def _in_best_order(
    dumps: Dumps, refs: Sequence[str], cands: Sequence[str], rule: PartsRule[_KindT]
) -> Sequence[BatchParts]:
    """Returns each value of a layer with its parts; none where the numbers of calls are no multiples of each other."""
    if len(refs) == len(cands):
        return _with_axis_of_parts(dumps, refs, cands, rule)
    is_ref = len(refs) < len(cands)
    wholes, parts = (refs, cands) if is_ref else (cands, refs)
    holder, other = (dumps.ref, dumps.cand) if is_ref else (dumps.cand, dumps.ref)
    if len(parts) % len(wholes):
        return ()
    best = _best_assignment(_Calls.of(holder, wholes, rule), _Calls.of(other, parts, rule), rule)
    if best is None:
        return ()
    of_wholes: list[list[int]] = best.tolist()
    return [
        BatchParts(of_ref=is_ref, holder=holder, whole=whole, other=other, parts=tuple(parts[call] for call in calls))
        for whole, calls in zip(wholes, of_wholes, strict=True)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Calls(Generic[_KindT]):
    """_Calls stores what a rule reads of the calls of a layer, once for all ways in which they may belong together.

    Attributes:
        kinds: The kinds of their values, each once.
        kind: Which of them each value has.
        amounts: Their amounts.
    """

    kinds: Sequence[_KindT]
    kind: Array
    amounts: Array

    @classmethod
    def of(cls, source: DumpSource, keys: Sequence[str], rule: PartsRule[_KindT]) -> Self:
        """Returns those of some values."""
        numbers: dict[_KindT, int] = {}
        kind = [numbers.setdefault(rule.kind(source, key), len(numbers)) for key in keys]
        amounts = np.array([rule.amount(source, key) for key in keys])
        return cls(kinds=[*numbers], kind=np.array(kind), amounts=amounts)


def _best_assignment(wholes: _Calls[_KindT], parts: _Calls[_KindT], rule: PartsRule[_KindT]) -> Array | None:
    """Returns the calls for the parts of each whole that fit the values best; None where there are none of parts."""
    best, least = None, math.inf
    for calls in _assignments(len(wholes.kind), len(parts.kind)):
        of_kinds = {*zip(wholes.kind.tolist(), *parts.kind[calls.T].tolist(), strict=True)}
        if not all(rule.fits(wholes.kinds[whole], [parts.kinds[part] for part in each]) for whole, *each in of_kinds):
            continue
        if (total := float(rule.errors(wholes.amounts, parts.amounts[calls]).sum())) < least:
            best, least = calls, total
    return best


def _assignments(wholes: int, parts: int) -> Iterator[Array]:
    """Yields the ways in which the calls for parts may belong to those for wholes, `[wholes, parts of each]`.

    A layer is called some times for each whole. The parts of a whole follow each other or, where each has every n-th
    example, are as far apart as there are wholes. The likeliest way is the first.
    """
    calls = np.arange(parts)
    count = parts // wholes
    for times in (each for each in range(wholes, 0, -1) if wholes % each == 0):
        yield calls.reshape(-1, count, times).swapaxes(1, 2).reshape(wholes, count)
        if (apart := wholes // times) > 1:
            yield calls.reshape(count, apart, times).transpose(1, 2, 0).reshape(wholes, count)


def _with_axis_of_parts(
    dumps: Dumps, refs: Sequence[str], cands: Sequence[str], rule: PartsRule[_KindT]
) -> Sequence[BatchParts]:
    """Returns each value of a layer with its counterpart that has one more axis, of the parts."""
    found: list[BatchParts] = []
    for ref, cand in zip(refs, cands, strict=True):
        of_ref = len(dumps.cand.entry(cand).shape) - len(dumps.ref.entry(ref).shape)
        if abs(of_ref) == 1:
            sides = (dumps.ref, ref), (dumps.cand, cand)
            (holder, whole), (other, part) = sides if of_ref == 1 else sides[::-1]
            found.append(BatchParts(of_ref=of_ref == 1, holder=holder, whole=whole, other=other, parts=(part,)))
    if len(found) < len(refs):
        return ()
    of_kinds = {(rule.kind(each.holder, each.whole), rule.kind(each.other, each.parts[0])) for each in found}
    return found if all(rule.fits(whole, (part,)) for whole, part in of_kinds) else ()
