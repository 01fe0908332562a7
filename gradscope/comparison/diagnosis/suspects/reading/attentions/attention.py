"""An `Attention` is one way in which an attention is computed of a query, a key and a value."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.diagnosis.suspects.reading.attentions.masks import (
    UNMASKED,
    Scored,
    is_mistaken,
    is_window,
    mask_in_words,
    mistaken,
)
from gradscope.comparison.diagnosis.suspects.reading.attentions.rotary import Rotary, usual_rotaries
from gradscope.naming.wording import brief

#: The most heads.
_MOST_HEADS: Final = 64

#: What is added to the scores of masked positions.
_MASKED: Final = -1e9

#: The values of a query, a key and a value `[examples, positions, features]`, or these packed as one.
Values: TypeAlias = Sequence[Array]

#: What a field of an attention means where that of another one has another value.
_WORDS: Final[Mapping[str, Mapping[object, str]]] = {
    "of_each_head": {
        True: "query, key and value packed for each head",
        False: "query, key and value packed for all heads",
    },
    "dealt": {True: "features dealt out to the heads in turn", False: "the features of each head side by side"},
    "tiled": {True: "the heads of keys repeated in turn", False: "each head of keys repeated"},
    "over_queries": {True: "a softmax over the queries", False: "a softmax over the keys"},
    "masks_shares": {True: "its mask behind the softmax", False: "its mask before the softmax"},
    "merged": {
        "": "heads merged side by side",
        "unmoved": "heads merged without a transpose",
        "dealt": "heads merged feature by feature",
    },
}


class Attention(NamedTuple):
    """Attention is an attention of three values.

    Attributes:
        order: The positions of the query, the key and the value among the values.
        heads: The number of heads.
        scale: By what scores are multiplied.
        mask: The mask, in words.
        bias: What is added to scores, in words.
        rotary: By what queries and keys are rotated; None for nothing.
        of_each_head: Whether a packed value has query, key and value of each head side by side, and not those of all.
        dealt: Whether the features of a head are one in so many as there are heads, and not side by side.
        tiled: Whether fewer heads of keys and values are repeated in turn, and not each of them.
        over_queries: Whether shares of the queries add up to one, and not those of the keys.
        masks_shares: Whether the mask makes shares zero, which then do not add up to one, and does not change scores.
        merged: How heads are merged: one behind the other (""), without moving them behind the positions ("unmoved"),
            or feature by feature ("dealt").
    """

    order: tuple[int, ...]
    heads: int
    scale: float
    mask: str
    bias: str
    rotary: Rotary | None = None
    of_each_head: bool = False
    dealt: bool = False
    tiled: bool = False
    over_queries: bool = False
    masks_shares: bool = False
    merged: str = ""

    def of(self, values: Values, masks: Scored, biases: Scored, queries: Array | None = None) -> Array | None:
        """Returns the attention `[examples, queries, features]`; None where a bias is one of another number of heads.

        Args:
            values: The values.
            masks: The masks `[examples, 1, queries or 1, keys]`, or of fewer axes.
            biases: What may be added to scores `[examples, heads, queries, keys]`, or of fewer axes.
            queries: The positions whose attention is asked for; None for all.
        """
        query, key, value = self._split(values)
        every = np.arange(query.shape[2])
        rows = every if queries is None or not self.is_by_rows else queries
        query = query[:, :, rows]
        if self.rotary is not None:
            query, key, value = self._rotated(query, key, value, rows)
        scores = self.scale * query @ key.swapaxes(2, 3)
        bias, mask = biases[self.bias], masks[self.mask]
        if bias is not None:
            if bias.ndim > 2 and bias.shape[-3] not in (1, self.heads):
                return None
            scores = scores + _of_rows(bias, rows)[: scores.shape[0]]
        shown = None if mask is None else _of_rows(mask, rows)[: scores.shape[0]]
        if shown is not None and not self.masks_shares:
            scores = np.where(shown, scores, _MASKED)
        axis = -2 if self.over_queries else -1
        weights = np.exp(scores - scores.max(axis, keepdims=True))
        shares = weights / weights.sum(axis, keepdims=True)
        read = (shares if shown is None or not self.masks_shares else shares * shown) @ value
        moved = {"": (0, 2, 1, 3), "dealt": (0, 2, 3, 1), "unmoved": (0, 1, 2, 3)}[self.merged]
        merged = read.transpose(moved).reshape(len(read), len(rows), -1)
        return merged if queries is None or self.is_by_rows else merged[:, queries]

    @property
    def is_by_rows(self) -> bool:
        """Whether the attention of a position needs no other positions' queries."""
        return not self.over_queries and self.merged != "unmoved"

    def unusual(self, *, is_packed: bool, is_grouped: bool) -> Iterator[Attention]:
        """Yields what the attention may be by a mistake.

        Args:
            is_packed: Whether its values are packed as one.
            is_grouped: Whether keys have fewer heads than queries.
        """
        several = self.heads > 1
        ways = itertools.product(
            (False, True) if is_packed and several else (self.of_each_head,),
            (False, True) if several else (False,),
            (False, True) if is_grouped else (False,),
            (False, True),
            ("", "unmoved", "dealt") if several else ("",),
        )
        for of_each_head, dealt, tiled, over_queries, merged in ways:
            other = self._replace(
                of_each_head=of_each_head, dealt=dealt, tiled=tiled, over_queries=over_queries, merged=merged
            )
            if other != self:
                yield other
        yield from (self._replace(mask=mask) for mask in mistaken(self.mask))
        if self.mask != UNMASKED:
            yield self._replace(masks_shares=True)
        if self.rotary is not None:
            yield from (self._replace(rotary=rotary) for rotary in self.rotary.mistaken())

    def differences(self, other: Attention) -> int:
        """Returns in how many ways the attention is another than a given one."""
        pairs = [*zip(self.order, other.order, strict=True), *zip(self[3:5], other[3:5], strict=True)]
        pairs += [*zip(self[6:], other[6:], strict=True), (self.heads, other.heads)]
        turned = [
            *zip(
                self.rotary or (None,) * len(Rotary._fields), other.rotary or (None,) * len(Rotary._fields), strict=True
            )
        ]
        return sum(one != two for one, two in pairs + turned) + (not math.isclose(self.scale, other.scale))

    def words(self, other: Attention, names: Sequence[str]) -> str:
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
        told += [mask_in_words(self.mask, other.mask)] if self.mask != other.mask else []
        told += [self.bias] if self.bias != other.bias else []
        if self.rotary != other.rotary:
            told.append("no rotary positions" if self.rotary is None else self.rotary.words)
        told += [
            words[getattr(self, field)] for field, words in _WORDS.items()
            if getattr(self, field) != getattr(other, field)
        ]  # fmt: skip
        return ", ".join(told)

    def _split(self, values: Values) -> Sequence[Array]:
        """Returns query, key and value `[examples, heads, positions, features of a head]`."""
        if len(values) > 1:
            width = values[self.order[0]].shape[-1] // self.heads
            parts = [self._heads_of(each, width) for each in values]
        elif self.of_each_head:
            parts = np.split(self._heads_of(values[0], values[0].shape[-1] // self.heads), 3, axis=-1)
        else:
            thirds = np.split(values[0], 3, axis=-1)
            parts = [self._heads_of(each, each.shape[-1] // self.heads) for each in thirds]
        query, *others = (parts[at] for at in self.order)
        return [query, *map(self._repeated, others)]

    def _heads_of(self, value: Array, width: int) -> Array:
        shape = value.shape[:2]
        if self.dealt:
            return value.reshape(*shape, width, -1).transpose(0, 3, 1, 2)
        return value.reshape(*shape, -1, width).swapaxes(1, 2)

    def _repeated(self, heads: Array) -> Array:
        """Returns a head of keys or values for each of queries."""
        times = self.heads // heads.shape[1]
        return np.tile(heads, (1, times, 1, 1)) if self.tiled else np.repeat(heads, times, axis=1)

    def _rotated(self, query: Array, key: Array, value: Array, rows: Array) -> tuple[Array, Array, Array]:
        rotary, every = self.rotary, np.arange(key.shape[2])
        assert rotary is not None
        query = rotary.rotated(query, rows + rotary.ahead) if rotary.of != "key" else query
        key = rotary.rotated(key, every) if rotary.of != "query" else key
        return query, key, rotary.rotated(value, every) if rotary.of == "all" else value


def usual_attentions(
    features: Sequence[int], orders: Sequence[tuple[int, ...]], masks: Scored, biases: Scored, *, is_packed: bool
) -> Iterator[Attention]:
    """Yields the attentions that programs have, the most usual ones first.

    Args:
        features: The features of the three values.
        orders: The places that query, key and value may have among the values.
        masks: The masks that they may have.
        biases: What may be added to their scores.
        is_packed: Whether their values are packed as one.
    """
    most = max(features)
    counts = [
        heads for heads in range(1, min(most, _MOST_HEADS) + 1)
        if most % heads == 0 and min(features) % (most // heads) == 0
    ]  # fmt: skip
    usual = [mask for mask in masks if not is_mistaken(mask)]
    ways = itertools.product(usual_rotaries(8), (False, True), biases, usual, counts)
    for rotary, of_each_head, bias, mask, heads in ways:
        width = most // heads
        if (of_each_head and not (is_packed and heads > 1)) or rotary not in usual_rotaries(width):
            continue
        if is_window(mask) and rotary not in (None, Rotary()):  # of each window all ways would take seconds
            continue
        for scale in usual_scales(most, heads)[: 1 if is_window(mask) else None]:
            for order in orders:
                yield Attention(order, heads, scale, mask, bias, rotary, of_each_head)


def usual_scales(features: int, heads: int) -> list[float]:
    """Returns by what programs multiply scores, the most usual first, some of them by a mistake.

    Args:
        features: The number of features of the query.
        heads: The number of heads.
    """
    width = features // heads
    return list(dict.fromkeys((width**-0.5, 1.0, features**-0.5, 1 / width)))


def _of_rows(array: Array, rows: Array) -> Array:
    """Returns what is said of scores `[..., queries or 1, keys]` for some queries, with four axes."""
    array = array.reshape((1,) * (4 - array.ndim) + array.shape)
    return array if array.shape[2] == 1 else array[:, :, rows]
