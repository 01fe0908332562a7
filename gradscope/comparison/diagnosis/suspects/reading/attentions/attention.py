"""An `Attention` is one way in which an attention is computed of a query, a key and a value."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.naming.wording import brief

#: The most heads.
_MOST_HEADS: Final = 64

#: What is added to the scores of masked positions.
_MASKED: Final = -1e9

#: What may be done to scores, by its words: where a position may be read, or what is added; None for nothing.
Scored: TypeAlias = Mapping[str, Array | None]

#: The values of a query, a key and a value `[examples, positions, features]`, or these packed as one.
Values: TypeAlias = Sequence[Array]

#: What a field of an attention means where that of another one has another value.
_WORDS: Final[Mapping[str, Mapping[object, str]]] = {
    "of_each_head": {
        True: "query, key and value packed for each head",
        False: "query, key and value packed for all heads",
    },
    "dealt": {True: "features dealt out to the heads in turn", False: "the features of each head side by side"},
    "over_queries": {True: "a softmax over the queries", False: "a softmax over the keys"},
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
        of_each_head: Whether a packed value has query, key and value of each head side by side, and not those of all.
        dealt: Whether the features of a head are one in so many as there are heads, and not side by side.
        over_queries: Whether shares of the queries add up to one, and not those of the keys.
        merged: How heads are merged: one behind the other (""), without moving them behind the positions ("unmoved"),
            or feature by feature ("dealt").
    """

    order: tuple[int, ...]
    heads: int
    scale: float
    mask: str
    bias: str
    of_each_head: bool = False
    dealt: bool = False
    over_queries: bool = False
    merged: str = ""

    def of(self, values: Values, masks: Scored, biases: Scored, queries: Array | None = None) -> Array | None:
        """Returns the attention `[examples, queries, features]`; None where a bias is one of another number of heads.

        Args:
            values: The values.
            masks: The masks `[examples, 1, queries or 1, keys]`, or of fewer axes.
            biases: What may be added to scores `[examples, heads, queries, keys]`, or of fewer axes.
            queries: The positions whose attention is asked for; None for all, which `over_queries` needs.
        """
        query, key, value = self._split(values)
        rows = np.arange(query.shape[2]) if queries is None else queries
        scores = self.scale * query[:, :, rows] @ key.swapaxes(2, 3)
        bias, mask = biases[self.bias], masks[self.mask]
        if bias is not None:
            if bias.ndim > 2 and bias.shape[-3] not in (1, self.heads):
                return None
            scores = scores + _of_rows(bias, rows)[: scores.shape[0]]
        if mask is not None:
            scores = np.where(_of_rows(mask, rows)[: scores.shape[0]], scores, _MASKED)
        axis = -2 if self.over_queries else -1
        weights = np.exp(scores - scores.max(axis, keepdims=True))
        read = weights / weights.sum(axis, keepdims=True) @ value
        moved = {"": (0, 2, 1, 3), "dealt": (0, 2, 3, 1), "unmoved": (0, 1, 2, 3)}[self.merged]
        return read.transpose(moved).reshape(len(read), len(rows), -1)

    @property
    def is_by_rows(self) -> bool:
        """Whether the attention of a position needs no other positions' queries."""
        return not self.over_queries and self.merged != "unmoved"

    def unusual(self, *, is_packed: bool) -> Iterator[Attention]:
        """Yields what the attention may be by a mistake.

        Args:
            is_packed: Whether its values are packed as one.
        """
        several = self.heads > 1
        ways = itertools.product(
            (False, True) if is_packed and several else (self.of_each_head,),
            (False, True) if several else (False,),
            (False, True),
            ("", "unmoved", "dealt") if several else ("",),
        )
        for of_each_head, dealt, over_queries, merged in ways:
            other = self._replace(of_each_head=of_each_head, dealt=dealt, over_queries=over_queries, merged=merged)
            if other != self:
                yield other

    def differences(self, other: Attention) -> int:
        """Returns in how many ways the attention is another than a given one."""
        pairs = [*zip(self.order, other.order, strict=True), *zip(self[3:], other[3:], strict=True)]
        pairs += [(self.heads, other.heads)]
        return sum(one != two for one, two in pairs) + (not math.isclose(self.scale, other.scale))

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
        told += [own for own, its in ((self.mask, other.mask), (self.bias, other.bias)) if own != its]
        told += [
            words[getattr(self, field)] for field, words in _WORDS.items()
            if getattr(self, field) != getattr(other, field)
        ]  # fmt: skip
        return ", ".join(told)

    def _split(self, values: Values) -> Sequence[Array]:
        """Returns query, key and value `[examples, heads, positions, features of a head]`."""
        if len(values) > 1:
            parts = [self._heads_of(each) for each in values]
        elif self.of_each_head:
            parts = np.split(self._heads_of(values[0]), 3, axis=-1)
        else:
            parts = [self._heads_of(each) for each in np.split(values[0], 3, axis=-1)]
        return [parts[at] for at in self.order]

    def _heads_of(self, value: Array) -> Array:
        shape = value.shape[:2]
        if self.dealt:
            return value.reshape(*shape, -1, self.heads).transpose(0, 3, 1, 2)
        return value.reshape(*shape, self.heads, -1).swapaxes(1, 2)


def usual_attentions(features: int, masks: Scored, biases: Scored, *, is_packed: bool) -> Iterator[Attention]:
    """Yields the attentions that programs have, the most usual ones first.

    Args:
        features: The features of a query.
        masks: The masks that they may have.
        biases: What may be added to their scores.
        is_packed: Whether their values are packed as one.
    """
    counts = [heads for heads in range(1, min(features, _MOST_HEADS) + 1) if features % heads == 0]
    for of_each_head, bias, mask, heads in itertools.product((False, True), biases, masks, counts):
        if of_each_head and not (is_packed and heads > 1):
            continue
        width = features // heads
        for scale in dict.fromkeys((width**-0.5, 1.0, features**-0.5, 1 / width)):
            for order in itertools.permutations(range(3)):
                yield Attention(order, heads, scale, mask, bias, of_each_head)


def _of_rows(array: Array, rows: Array) -> Array:
    """Returns what is said of scores `[..., queries or 1, keys]` for some queries, with four axes."""
    array = array.reshape((1,) * (4 - array.ndim) + array.shape)
    return array if array.shape[2] == 1 else array[:, :, rows]
