"""`AttentionParts` are the values that an attention may be of, and what its scores may have added.

A layer reads an attention of positions where its kernel is a matrix, or a convolution with a window of one: the axes of
images are one axis of positions then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.diagnosis.suspects.reading.attentions.masks import Scored
from gradscope.comparison.diagnosis.suspects.reading.recovered_values import Recovered
from gradscope.naming import printable, split_key


@dataclass(frozen=True, slots=True)
class Positions:
    """Positions tell which axis of a layer's values has the features.

    Attributes:
        matrix: The layer's kernel without its window.
        first: Whether features are the axis behind the examples, and not the last one.
    """

    matrix: Array
    first: bool

    @classmethod
    def of_kernel(cls, kernel: Array) -> Positions | None:
        """Returns those of a layer by its kernel; None for one that reads more than one position."""
        if kernel.ndim == 2:
            return cls(kernel, first=False)
        if kernel.ndim > 2 and set(kernel.shape[2:]) == {1}:  # [out, in, 1, 1]
            return cls(kernel.reshape(kernel.shape[:2]), first=True)
        if set(kernel.shape[:-2]) == {1}:
            return cls(kernel.reshape(kernel.shape[-2:]), first=False)
        # [heads, features of a head, out]: the kernel that merges heads is a window of none of the attentions tried
        return cls(kernel.reshape(-1, kernel.shape[-1]), first=False) if kernel.ndim == 3 else None

    def of(self, value: Array) -> Array:
        """Returns a value of the layer, or one like it, as `[examples, positions, features]`."""
        last = np.moveaxis(value, 1, -1) if self.first else value
        return last.reshape(last.shape[0], -1, last.shape[-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionParts:
    """AttentionParts stores what an attention of both programs may be of.

    Attributes:
        values: The query, the key and the value, or these packed as one, each `[examples, positions, features]`.
        names: The names of the three.
        count: The number of positions of the query, which keys and values may have others of.
        biases: What may be added to the scores of each program, by its words.
    """

    values: Sequence[Recovered]
    names: Sequence[str]
    count: int
    biases: tuple[Scored, Scored]

    @property
    def is_packed(self) -> bool:
        """Whether query, key and value are packed as one."""
        return len(self.values) == 1

    @property
    def features(self) -> Sequence[int]:
        """The number of features of query, key and value."""
        widths = [each.own.shape[-1] for each in self.values]
        return [widths[0] // 3] * 3 if self.is_packed else widths

    @property
    def is_grouped(self) -> bool:
        """Whether keys and values have fewer features than queries, as of fewer heads."""
        return min(self.features) < max(self.features)

    @property
    def orders(self) -> Sequence[tuple[int, ...]]:
        """The places that query, key and value may have among the values: fewer heads are those of keys and values."""
        most, shapes = max(self.features), [each.own.shape for each in self.values]
        queries = [
            at for at, width in enumerate(self.features)
            if width == most and (self.is_packed or shapes[at][1] == self.count)
        ]  # fmt: skip
        return [order for order in permutations(range(3)) if order[0] in queries and self._are_keys(order[1:])]

    @property
    def scores(self) -> tuple[int, int, int]:
        """The number of examples, and of queries and keys of each."""
        shapes = [each.own.shape for each in self.values]
        keys = next((shape[1] for shape in shapes if shape[1] != self.count), self.count)
        return shapes[0][0], self.count, keys

    def _are_keys(self, at: Sequence[int]) -> bool:
        return self.is_packed or len({self.values[each].own.shape[1] for each in at}) == 1


def attention_parts(
    read: Sequence[tuple[str, Recovered]], output: Array, positions: Positions
) -> AttentionParts | None:
    """Returns what an attention may be of; None where values are not those of one.

    Args:
        read: What the layer behind it reads, by keys.
        output: The output of the layer.
        positions: Where its features are.
    """
    examples, count, _ = positions.of(output).shape

    def flat(array: Array) -> Array | None:
        if not array.size:
            return None
        if output.ndim == 3 and array.ndim == 4 and not positions.first:  # [examples, positions, heads, features]
            return array.reshape(*array.shape[:2], -1)
        return positions.of(array) if array.ndim == output.ndim else None

    flattened = [(f"`{printable(split_key(key)[1])}`", flat(pair.own), flat(pair.other)) for key, pair in read]
    every = [
        (name, Recovered(own, other)) for name, own, other in flattened
        if own is not None and other is not None and own.shape == other.shape and len(own) == examples
    ]  # fmt: skip
    values = [each for each in every if each[1].own.shape[1] == count]
    others = [each for each in every if each[1].own.shape[1] != count]
    keys = others[0][1].own.shape[1] if others else count
    if len(values) == 1 and len(others) == 2 and len({pair.own.shape for _, pair in others}) == 1:
        values += others  # keys and values of another sequence
    else:
        keys = count
    biases = {} if len(values) == len(read) else dict(_biases(read, {name for name, _ in values}, count, keys))
    sides: list[dict[str, Array | None]] = [
        {"no position bias": None, **{words: pair[side] for words, pair in biases.items()}} for side in (0, 1)
    ]
    if len(values) == 1 and values[0][1].own.shape[-1] % 3 == 0:
        ((name, packed),) = values
        names = [f"the {nth} third of {name}" for nth in ("first", "second", "last")]
        return AttentionParts(values=[packed], names=names, count=count, biases=(sides[0], sides[1]))
    if len(values) != 3:
        return None
    fewest, middle, most = sorted(pair.own.shape[-1] for _, pair in values)
    if most % fewest or middle != fewest:
        return None
    names, pairs = [name for name, _ in values], [pair for _, pair in values]
    return AttentionParts(values=pairs, names=names, count=count, biases=(sides[0], sides[1]))


def _biases(
    read: Sequence[tuple[str, Recovered]], others: set[str], count: int, keys: int
) -> Iterator[tuple[str, Recovered]]:
    """Yields what may be added to scores, one for each query and key, as `[..., heads, queries, keys]`."""
    for key, pair in read:
        name = f"`{printable(split_key(key)[1])}`"
        if name in others or pair.own.shape != pair.other.shape:
            continue
        shape = pair.own.shape
        if shape[:2] == (count, keys) and len(shape) == 3:  # [queries, keys, heads]
            moved = Recovered(*(each.transpose(2, 0, 1) for each in pair))
        elif shape[-2:] == (count, keys):
            moved = pair
        else:
            continue
        yield f"{name} as the position bias", moved
        if count == keys:
            yield f"{name} transposed as the position bias", Recovered(*(each.swapaxes(-1, -2) for each in moved))
