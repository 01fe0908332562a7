"""`attention_read` tells that a layer reads other attentions of the same values in two programs.

Where an attention has no entry, the dense layer behind it, or the convolution with a window of one, shows which it is:
of the values that it is computed from, any may be the query, the key and the value, of any number of heads, scaled,
masked, rotated by positions and with a position bias in the usual ways; keys may have fewer heads than queries. The
attention of each program has to make the output of the layer; then what differs between them is told. Where one of them
makes it in a usual way, the other may also do so in a way that is a mistake (`Attention.unusual`), or with any scale.

Products of a kernel that only one of the programs has an entry for are those of the other, too, where what they are
made of agrees, and so is what only arranges a value that agrees, as a position bias. Where that program has the whole
attention as one layer, as PyTorch's `MultiheadAttention`, the layer of the other that merges the heads shows which it
is.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.diagnosis.refuting.float_tensors import FloatTensors
from gradscope.comparison.diagnosis.refuting.kernel_products import is_product
from gradscope.comparison.diagnosis.step_kinds import have_same_elements
from gradscope.comparison.diagnosis.suspects.reading.attentions.attention import (
    Attention,
    usual_attentions,
    usual_scales,
)
from gradscope.comparison.diagnosis.suspects.reading.attentions.attention_parts import (
    AttentionParts,
    attention_parts,
)
from gradscope.comparison.diagnosis.suspects.reading.attentions.masks import masks_of
from gradscope.comparison.diagnosis.suspects.reading.attentions.reading_layers import ReadingLayer, dense_of
from gradscope.comparison.diagnosis.suspects.reading.recovered_values import Recovered, RecoveredValues
from gradscope.comparison.diagnosis.suspects.steps import makers_of
from gradscope.comparison.pairing.matching import Dumps, Match, Pairing
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.layer_graph import Sources, sources_of
from gradscope.naming import ACTIVATION, INPUT, PARAM, key_of, split_key

#: The largest relative error of what a product is made of, where that agrees.
_AGREE: Final = 1e-3


def attention_read(dumps: Dumps, pairing: Pairing, key: str) -> str:
    """Returns which attentions a layer reads in both programs, in words; "" if not others.

    Args:
        dumps: The dumps.
        pairing: Their pairing.
        key: The key of the output of the layer in the reference.
    """
    match = next((each for each in pairing.matched if each.ref == key), None)
    if match is None:
        return ""
    return next((words for of_ref in (True, False) if (words := _told(dumps, pairing, match, of_ref=of_ref))), "")


def _told(dumps: Dumps, pairing: Pairing, match: Match, *, of_ref: bool) -> str:
    """Returns which attentions are read, in words, by the layers and values of one of the programs."""
    source = dumps.ref if of_ref else dumps.cand
    layers, name = source.manifest.layers, match.ref if of_ref else match.cand
    key = source.resolve(name)
    layer = makers_of(layers).get(split_key(key)[1])
    pairs = RecoveredValues(dumps, pairing, of_ref=of_ref)
    output = pairs.pair(name)
    if layer is None or output is None or output.own.ndim not in (3, 4) or not output.own.size:
        return ""
    params = [pair for name in layer.params if (pair := pairs.pair(key_of(PARAM, name))) is not None]
    dense = dense_of(params) if len(params) == len(layer.params) else None
    if dense is None:
        return ""
    made = _MadeOfAgreeing(source, pairs)
    found = list(_pairs_read(sources_of(layers), key, lambda each: pairs.pair(each) or made.pair(each)))
    parts = attention_parts(found, output.own, dense[0].positions)
    if parts is None:
        return ""
    masks = masks_of(*parts.scores, _given(source, parts.scores))
    sides = [
        ReadingLayer([each[side] for each in parts.values], parts.biases[side], masks, dense[side], output[side])
        for side in (0, 1)
    ]
    usual = list(usual_attentions(parts.features, parts.orders, masks, parts.biases[0], is_packed=parts.is_packed))
    attentions = _attentions_of(parts, sides[0], sides[1], usual)
    if attentions is None:
        return ""
    own, other = (each.words(its, parts.names) for each, its in (attentions, attentions[::-1]))
    if of_ref:
        return f"which reads an attention with {own}, and in the candidate with {other}"
    return f"which computes an attention with {other}, and in the candidate with {own}"


def _pairs_read(
    sources: Sources, key: str, pair_of: Callable[[str], Recovered | None]
) -> Iterator[tuple[str, Recovered]]:
    """Yields the pairs that a value is computed from, through what one program alone has, as the weights of a dropout.

    Args:
        sources: What each value is computed from.
        key: The value's key.
        pair_of: Returns the tensors of a key in both programs; None where one of them has none.
    """
    seen, todo = {key}, [key]
    while todo:
        for each in sources.get(todo.pop(), ()):
            if each in seen or split_key(each)[0] not in (ACTIVATION, INPUT):
                continue
            seen.add(each)
            if (pair := pair_of(each)) is None:
                todo.append(each)
            else:
                yield each, pair


def _given(source: DumpSource, scores: tuple[int, int, int]) -> dict[str, Array]:
    """Returns the inputs of a program that have a number for each key of each example, by their keys.

    No layer is stated to read a mask of whole numbers, which has no gradient.
    """
    shape = scores[0], scores[2]
    keys = (key for key in source.keys() if split_key(key)[0] == INPUT)  # noqa: SIM118 - no mapping
    return {key: source.array(key) for key in keys if source.has_tensor(key) and source.entry(key).shape == shape}


def _attentions_of(
    parts: AttentionParts, ref: ReadingLayer, cand: ReadingLayer, usual: Sequence[Attention]
) -> tuple[Attention, Attention] | None:
    """Returns the attentions of two layers; None where one is not known, or they are the same.

    Args:
        parts: What they are of.
        ref: The layer of the reference.
        cand: That of the candidate.
        usual: The usual attentions.
    """
    kinds = {"is_packed": parts.is_packed, "is_grouped": parts.is_grouped}
    if own := next(ref.fitting(usual), None):
        its = _nearest(cand, own, (*usual, *_scaled(own, parts), *_beside(usual, own, **kinds)))
    elif its := next(cand.fitting(usual), None):
        own = _nearest(ref, its, (*_scaled(its, parts), *_beside(usual, its, **kinds)))
    else:
        its = None
    if own is not None and its is None:
        its = cand.scaled(own)
    elif its is not None and own is None:
        own = ref.scaled(its)
    return None if own is None or its is None else (own, its)


def _scaled(known: Attention, parts: AttentionParts) -> Iterator[Attention]:
    """Yields an attention with each usual scale, and those that a root or a division in the wrong place makes.

    Of windows, the usual attentions have one scale, as all would take long.
    """
    most = max(parts.features)
    scales = (*usual_scales(most, known.heads), (most // known.heads) ** 0.5, 1 / most)
    yield from (known._replace(scale=scale) for scale in scales)


def _nearest(layer: ReadingLayer, known: Attention, tried: Iterable[Attention]) -> Attention | None:
    """Returns the nearest attention that makes a layer's output; None where it is the known one, or two are as near.

    Where a mask leaves one position, nothing shows heads and scale: the fewest differences are told.
    """
    for _, alike in itertools.groupby(sorted(dict.fromkeys(tried), key=known.differences), key=known.differences):
        if found := list(islice(layer.fitting(alike), 2)):
            return None if len(found) > 1 or found[0] == known else found[0]
    return None


def _beside(usual: Iterable[Attention], known: Attention, *, is_packed: bool, is_grouped: bool) -> Iterator[Attention]:
    """Yields what a known attention, or one of another scale, bias or rotary positions, may be by a mistake."""
    fields = ("scale", "bias", "rotary")
    for each in usual:
        changed = [name for name in fields if getattr(each, name) != getattr(known, name)]
        if len(changed) <= 1 and each == known._replace(**{name: getattr(each, name) for name in changed}):
            yield from each.unusual(is_packed=is_packed, is_grouped=is_grouped)


class _MadeOfAgreeing:
    """`_MadeOfAgreeing` has what only one of the programs has an entry for, and both make of values that agree.

    Args:
        source: The dump of the program.
        pairs: The tensors that are pairs.
    """

    def __init__(self, source: DumpSource, pairs: RecoveredValues) -> None:
        self._tensors, self._pairs, self._known = FloatTensors(source), pairs, frozenset(source.keys())
        self._makers, self._sources = makers_of(source.manifest.layers), sources_of(source.manifest.layers)

    def pair(self, key: str) -> Recovered | None:
        """Returns a product of a kernel in both programs, or a value that is arranged otherwise; None for any other.

        Args:
            key: Its key.
        """
        layer, value = self._makers.get(split_key(key)[1]), self._tensors.tensor(key)
        if layer is None or value is None:
            return None
        sources = (each for each in self._sources.get(key, ()) if each in self._known)
        read = [each for each in sources if split_key(each)[0] in (ACTIVATION, INPUT)]
        arranged = self._pairs.pair(read[0]) if len(read) == 1 else None
        if arranged is not None and _agree(arranged) and have_same_elements(value, arranged.own):
            return Recovered(value, value)
        made_of = [self._pairs.pair(each) for each in (*read, *(key_of(PARAM, name) for name in layer.params))]
        known = read and layer.params and all(pair is not None and _agree(pair) for pair in made_of)
        return Recovered(value, value) if known and is_product(self._tensors, layer, key) else None


def _agree(pair: Recovered) -> bool:
    return bool(np.linalg.norm(pair.other - pair.own) <= _AGREE * np.linalg.norm(pair.own))
