"""`attention_read` tells that a dense layer reads other attentions of the same values in two programs.

Where an attention has no entry, the layer behind it shows which it is: of the values that it is computed from, any may
be the query, the key and the value, of any number of heads, scaled and masked in the usual ways. The attention of each
program has to make the output of the layer; then what differs between them is told. Where one of them makes it in a
usual way, the other may also take the shares over the queries, or merge the heads without a transpose.

Products of a kernel that only the reference has an entry for are those of the candidate, too, where what they are made
of agrees.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.diagnosis.refuting.float_tensors import FloatTensors
from gradscope.comparison.diagnosis.refuting.kernel_products import is_product
from gradscope.comparison.diagnosis.suspects.reading.recovered_values import Recovered, RecoveredValues
from gradscope.comparison.diagnosis.suspects.steps import makers_of
from gradscope.comparison.pairing.matching import Dumps, Match, Pairing
from gradscope.dump.manifest.layer_graph import sources_of
from gradscope.naming import ACTIVATION, INPUT, PARAM, key_of, printable, split_key
from gradscope.naming.wording import brief

#: The relative error up to which an output is made of an attention.
_FITS: Final = 1e-4

#: The largest relative error of what a product is made of, where that agrees.
_AGREE: Final = 1e-3

#: The most examples, and elements of one of them, of which attentions are computed, and the most heads.
_MOST_EXAMPLES: Final = 2
_MOST_ELEMENTS: Final = 1 << 15
_MOST_HEADS: Final = 64

#: What is added to the scores of masked positions.
_MASKED: Final = -1e9

#: The masks that an attention may have, by their words: where a position may be read, or None for everywhere.
_Masks: TypeAlias = Mapping[str, Array | None]


class _Attention(NamedTuple):
    """_Attention is an attention of three values.

    Attributes:
        order: The positions of the query, the key and the value.
        heads: The number of heads.
        scale: By what scores are multiplied.
        mask: The mask, in words.
        over_queries: Whether shares of the queries add up to one, and not those of the keys.
        unmoved: Whether the heads, which are before the positions, are merged without a transpose.
    """

    order: tuple[int, ...]
    heads: int
    scale: float
    mask: str
    over_queries: bool = False
    unmoved: bool = False

    def of(self, values: Sequence[Array], masks: _Masks) -> Array:
        """Returns the attention of values `[examples, positions, features]`."""
        query, key, value = (
            values[at].reshape(*values[at].shape[:2], self.heads, -1).swapaxes(1, 2) for at in self.order
        )
        scores = self.scale * query @ key.swapaxes(2, 3)
        mask = masks[self.mask]
        scores = scores if mask is None else np.where(mask, scores, _MASKED)
        axis = -2 if self.over_queries else -1
        weights = np.exp(scores - scores.max(axis, keepdims=True))
        read = weights / weights.sum(axis, keepdims=True) @ value
        return (read if self.unmoved else read.swapaxes(1, 2)).reshape(values[0].shape)

    def unusual(self) -> Iterator[_Attention]:
        """Yields what the attention may be by a mistake."""
        ways = [(True, False), *([(False, True), (True, True)] if self.heads > 1 else [])]
        yield from (self._replace(over_queries=axis, unmoved=merged) for axis, merged in ways)

    def differences(self, other: _Attention) -> int:
        """Returns in how many ways the attention is another than a given one."""
        pairs = [*zip(self.order, other.order, strict=True), *zip(self[4:], other[4:], strict=True)]
        pairs += [(self.heads, other.heads), (self.mask, other.mask)]
        return sum(one != two for one, two in pairs) + (not math.isclose(self.scale, other.scale))

    def words(self, other: _Attention, names: Sequence[str]) -> str:
        """Returns what the attention is that another is not, in words.

        Args:
            other: The other one.
            names: The names of the values.
        """
        roles = zip(("query", "key", "value"), self.order, other.order, strict=True)
        parts = [f"{names[at]} as the {role}" for role, at, its in roles if at != its]
        told = [" and ".join(parts)] if parts else []
        told += [f"{self.heads} head{'s' * (self.heads > 1)}"] if self.heads != other.heads else []
        told += [f"scores times {brief(self.scale)}"] if not math.isclose(self.scale, other.scale) else []
        told += [self.mask] if self.mask != other.mask else []
        if self.over_queries != other.over_queries:
            told.append("a softmax over the queries" if self.over_queries else "a softmax over the keys")
        if self.unmoved != other.unmoved:
            told.append(
                "heads merged without a transpose" if self.unmoved else "heads transposed before they are merged"
            )
        return ", ".join(told)


def attention_read(dumps: Dumps, pairing: Pairing, match: Match) -> str:
    """Returns which attentions a dense layer reads in both programs, in words; "" if not others.

    Args:
        dumps: The dumps.
        pairing: Their pairing.
        match: The pair of the output of the layer.
    """
    layers, known = dumps.ref.manifest.layers, frozenset(dumps.ref.keys())
    layer = makers_of(layers).get(split_key(match.ref)[1])
    read = [each for each in sources_of(layers).get(match.ref, ()) if split_key(each)[0] in (ACTIVATION, INPUT)]
    pairs = RecoveredValues(dumps, pairing, of_ref=True)
    value = pairs.pair(match.ref)
    if layer is None or value is None or value.own.ndim != 3:
        return ""
    products = _Products(dumps, pairs)
    parts, names = _parts([(each, pair) for each in read if (pair := pairs.pair(each) or products.pair(each))])
    params = [pair for name in layer.params if (pair := pairs.pair(key_of(PARAM, name))) is not None]
    if not parts or len(params) < len(layer.params):
        return ""
    masks = _masks(parts[0].own.shape, {each: dumps.ref.array(each) for each in read
                                        if each in known and dumps.ref.has_tensor(each)})  # fmt: skip
    one, two = ([each[side] for each in parts] for side in (0, 1))
    tried = list(_attentions(one[0].shape[-1], masks))
    of_ref = _Layer(one, value.own, [each.own for each in params])
    of_cand = _Layer(two, value.other, [each.other for each in params])
    found = _attentions_of(of_ref, of_cand, tried, masks)
    if found is None:
        return ""
    own, other = found
    return (
        f"which reads an attention with {own.words(other, names)}, and in the candidate with {other.words(own, names)}"
    )


class _Layer(NamedTuple):
    """A `_Layer` has three values that an attention may be of, and the output and parameters of the layer behind."""

    values: Sequence[Array]
    output: Array
    params: Sequence[Array]

    def fitting(self, tried: Iterable[_Attention], masks: _Masks) -> Iterator[_Attention]:
        """Yields those of some attentions that make the output."""
        return _fitting(tried, self.values, self.output, self.params, masks)


def _attentions_of(
    ref: _Layer, cand: _Layer, tried: Sequence[_Attention], masks: _Masks
) -> tuple[_Attention, _Attention] | None:
    """Returns the attentions of two layers; None where one is not known, or they are the same.

    Args:
        ref: The layer of the reference.
        cand: That of the candidate.
        tried: The usual attentions.
        masks: The masks.
    """
    if own := next(ref.fitting(tried, masks), None):
        its = _nearest(cand, own, [*sorted(tried, key=own.differences), *_beside(tried, own)], masks)
    elif its := next(cand.fitting(tried, masks), None):
        own = _nearest(ref, its, _beside(tried, its), masks)
    else:
        its = None
    return None if own is None or its is None else (own, its)


def _nearest(layer: _Layer, known: _Attention, tried: Iterable[_Attention], masks: _Masks) -> _Attention | None:
    """Returns the first attention that makes a layer's output; None where it is the known one, or a second is as near.

    Where a mask leaves one position, nothing shows heads and scale: the fewest differences are told.
    """
    found = list(islice(layer.fitting(tried, masks), 2))
    if not found or found[0] == known or len({*map(known.differences, found)}) < len(found):
        return None
    return found[0]


def _beside(tried: Iterable[_Attention], known: _Attention) -> list[_Attention]:
    """Returns what attentions of the heads, order and mask of a known one may be by a mistake, the nearest first."""
    alike = (each for each in tried if (each.order, each.heads, each.mask) == (known.order, known.heads, known.mask))
    return sorted((other for each in alike for other in each.unusual()), key=known.differences)


class _Products:
    """`_Products` are the products of kernels that only the reference has an entry for.

    Args:
        dumps: The dumps.
        pairs: The tensors that are pairs.
    """

    def __init__(self, dumps: Dumps, pairs: RecoveredValues) -> None:
        self._tensors, self._pairs, self._known = FloatTensors(dumps.ref), pairs, frozenset(dumps.ref.keys())
        self._makers, self._sources = makers_of(dumps.ref.manifest.layers), sources_of(dumps.ref.manifest.layers)

    def pair(self, key: str) -> Recovered | None:
        """Returns a product of both programs; None where the candidate may have another, or none.

        Args:
            key: Its key.
        """
        layer, value = self._makers.get(split_key(key)[1]), self._tensors.tensor(key)
        if layer is None or value is None or not layer.params:
            return None
        sources = (each for each in self._sources.get(key, ()) if each in self._known)
        read = [each for each in sources if split_key(each)[0] in (ACTIVATION, INPUT)]
        made_of = [self._pairs.pair(each) for each in (*read, *(key_of(PARAM, name) for name in layer.params))]
        known = read and all(pair is not None and _agree(pair) for pair in made_of)
        return Recovered(value, value) if known and is_product(self._tensors, layer, key) else None


def _agree(pair: Recovered) -> bool:
    return bool(np.linalg.norm(pair.other - pair.own) <= _AGREE * np.linalg.norm(pair.own))


def _parts(read: Sequence[tuple[str, Recovered]]) -> tuple[list[Recovered], list[str]]:
    """Returns the three values that an attention may be of, and their names; none where there are no such."""
    found = [(f"`{printable(split_key(key)[1])}`", pair) for key, pair in read if pair.own.ndim in (3, 4)]
    if len(found) == 1 and found[0][1].own.ndim == 3 and found[0][1].own.shape[-1] % 3 == 0:
        ((name, packed),) = found
        thirds = zip(*(np.split(each, 3, axis=-1) for each in packed), strict=True)
        return [Recovered(*each) for each in thirds], [
            f"the {nth} third of {name}" for nth in ("first", "second", "last")
        ]
    if len(found) != 3 or len({pair.own.shape for _, pair in found}) != 1:
        return [], []
    joined = [Recovered(*(each.reshape(*each.shape[:2], -1) for each in pair)) for _, pair in found]
    return joined, [name for name, _ in found]


def _masks(shape: tuple[int, ...], given: Mapping[str, Array]) -> _Masks:
    """Returns the masks that values of a shape may be read through, those that are given among them."""
    count = shape[1]
    causal = np.tril(np.ones((count, count), np.bool_))
    found: dict[str, Array | None] = {"no mask": None, "a causal mask": causal}
    for key, array in given.items():
        if array.shape == shape[:2] and array.dtype.kind in "biuf" and np.isin(array, (0, 1)).all():
            name = f"`{printable(split_key(key)[1])}`"
            kept = array.astype(np.bool_)[:_MOST_EXAMPLES, None, None, :]
            for words, mask in ((f"{name} as the mask", kept), (f"the inverse of {name} as the mask", ~kept)):
                found[words] = mask
                found[f"{words}, and a causal one"] = mask & causal
    return found


def _fitting(
    tried: Iterable[_Attention], values: Sequence[Array], output: Array, params: Sequence[Array], masks: _Masks
) -> Iterator[_Attention]:
    """Yields those of some attentions of values of which a dense layer makes an output."""
    kernels, biases = [each for each in params if each.ndim == 2], [each for each in params if each.ndim == 1]
    if len(kernels) != 1 or len(biases) > 1 or values[0][0].size > _MOST_ELEMENTS:
        return
    some, made = [each[:_MOST_EXAMPLES] for each in values], output[:_MOST_EXAMPLES]
    expected = made - biases[0] if biases and biases[0].size == made.shape[-1] else made
    shape = some[0].shape[-1], made.shape[-1]
    turned = [each for each in (kernels[0], kernels[0].T) if each.shape == shape]
    for attention in tried:
        read = attention.of(some, masks)
        if any(np.linalg.norm(read @ each - expected) <= _FITS * np.linalg.norm(expected) for each in turned):
            yield attention


def _attentions(features: int, masks: _Masks) -> Iterator[_Attention]:
    """Yields the attentions that are tried, the usual ones first."""
    for mask, heads in itertools.product(masks, range(1, min(features, _MOST_HEADS) + 1)):
        if features % heads == 0:
            width = features // heads
            for scale in dict.fromkeys((width**-0.5, 1.0, features**-0.5, 1 / width)):
                for order in itertools.permutations(range(3)):
                    yield _Attention(order, heads, scale, mask)
