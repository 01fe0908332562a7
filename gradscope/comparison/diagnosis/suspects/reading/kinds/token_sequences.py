"""`sequence_read` tells of which sequence of tokens a norm reads, as a vision transformer makes it of an image.

The features of an image are flattened along one axis first or another, a token that is a parameter stands before or
behind them, and positions that are a parameter are added. Code between layers does so, and no program has an entry for
the sequence. A norm shows each of its tokens but for a factor, and so which sequence it is.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.diagnosis.refuting.float_tensors import FloatTensors
from gradscope.comparison.diagnosis.suspects.steps import makers_of
from gradscope.comparison.pairing.matching import Dumps, Match, Pairing
from gradscope.dump.manifest.layer_graph import sources_of
from gradscope.naming import ACTIVATION, INPUT, PARAM, printable, split_key

#: The relative error up to which tokens are those of a sequence.
_FITS: Final = 1e-4

#: The largest relative error of a value that both programs have.
_AGREE: Final = 1e-3

#: The most elements of a sequence, and from which of its first rows positions may be taken.
_MOST_ELEMENTS: Final = 1 << 20
_MOST_OFFSET: Final = 2

#: The most axes of features that are flattened in every order.
_MOST_AXES: Final = 5

#: Both tensors of a pair, in the layout of the reference.
_Pair: TypeAlias = tuple[Array, Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Form:
    """_Form stores how a sequence is made.

    Attributes:
        order: The axes of the features that are flattened, in their order; none where they are a sequence.
        first: Whether the token stands before the features, in words; "" without one.
        positions: From which row on positions are added, in words.
        factor: By what the features are multiplied, in words.
    """

    order: str
    first: str
    positions: str
    factor: str


class _Parts(NamedTuple):
    """_Parts has what one program makes a sequence of.

    Attributes:
        features: The features.
        tokens: The parameters beside them, by their names.
    """

    features: Array
    tokens: Mapping[str, Array]

    def sequences(self, name: str, shape: tuple[int, ...]) -> Iterator[tuple[_Form, Array]]:
        """Yields the sequences of a shape that may be made of them.

        Args:
            name: The name of the features.
            shape: The shape, `[examples, tokens, channels]`.
        """
        count, width, root = *shape[1:], math.sqrt(shape[2])
        singles = {of: each.reshape(width) for of, each in self.tokens.items() if each.size == width}
        tables = {
            of: each.reshape(-1, width)
            for of, each in self.tokens.items()
            if each.size % width == 0 and each.size >= (count - 1) * width > 0
        }
        for order, flat in _flattened(self.features, name, shape):
            for words, factor in (("its plain features", 1.0), (f"its features times {root:.4g}", root)):
                for positions, table in _positions(tables, flat.shape[1]):
                    for first, made in _joined(flat * factor + table, name, singles, count):
                        alone = " of the features alone" if first and table.any() else ""
                        yield _Form(order=order, first=first, positions=positions + alone, factor=words), made
                for first, joined in _joined(flat * factor, name, singles, count):
                    if joined.shape[1] > flat.shape[1]:
                        for positions, table in _positions(tables, count):
                            if table.any():
                                yield _Form(order=order, first=first, positions=positions, factor=words), joined + table


def sequence_read(dumps: Dumps, pairing: Pairing, match: Match) -> str:
    """Returns which sequence a norm reads in both programs, in words; "" where that is the same, or not known.

    Args:
        dumps: The dumps.
        pairing: Their pairing.
        match: The pair of the norm's output, which differs.
    """
    layer = makers_of(dumps.ref.manifest.layers).get(split_key(match.ref)[1])
    read = {
        *sources_of(dumps.ref.manifest.layers).get(match.ref, ()),
        *_in_reference(pairing, sources_of(dumps.cand.manifest.layers).get(match.cand, ())),
    }
    if layer is None or not read:
        return ""
    both = _Both(FloatTensors(dumps.ref), FloatTensors(dumps.cand))
    values = both.of(match)
    if values is None or values[0].ndim != 3 or not 0 < values[0].size <= _MOST_ELEMENTS:
        return ""
    pairs: dict[str, dict[str, _Pair]] = {"features": {}, "own": {}, "tokens": {}}
    for each in (each for each in pairing.matched if each.ref in read):
        family, name = split_key(each.ref)
        kind = "own" if name in layer.params else "tokens" if family == PARAM else "features"
        if family in (ACTIVATION, INPUT, PARAM) and (pair := both.of(each)) is not None:
            pairs[kind][printable(name)] = pair
    if len(pairs["features"]) != 1 or not 0 < len(pairs["own"]) < 3 or not pairs["tokens"]:
        return ""
    ((name, features),) = pairs["features"].items()
    if np.linalg.norm(features[1] - features[0]) > _AGREE * np.linalg.norm(features[0]):
        return ""
    one, other = (
        [
            *_fitting(
                _Parts(features[at], {of: pair[at] for of, pair in pairs["tokens"].items()}),
                name,
                values[at],
                [pair[at] for pair in pairs["own"].values()],
            )
        ]
        for at in (0, 1)
    )
    return _difference(one, other)


class _Both(NamedTuple):
    """_Both has the tensors of both programs."""

    ref: FloatTensors
    cand: FloatTensors

    def of(self, match: Match) -> _Pair | None:
        """Returns both tensors of a pair in the layout of the reference; None where they are not known."""
        one, other = self.ref.tensor(match.ref), self.cand.made(match.recipe)
        return None if one is None or other is None or one.shape != other.shape else (one, other)


def _in_reference(pairing: Pairing, keys: Iterable[str]) -> Iterator[str]:
    """Yields the keys of the reference that are paired with some of the candidate."""
    return (each.ref for each in pairing.matched if not {*each.recipe.keys}.isdisjoint({*keys}))


def _fitting(parts: _Parts, name: str, value: Array, params: list[Array]) -> Iterator[_Form]:
    """Yields the sequences that a norm with some parameters may make a value of."""
    plain = [each for each in _without(value, params) if np.isfinite(each).all()]
    for form, sequence in parts.sequences(name, value.shape):
        if any(_is_normalised(sequence, each) for each in plain):
            yield form


def _without(value: Array, params: list[Array]) -> Iterator[Array]:
    """Yields the output of a norm without its scale and its bias."""
    vectors = [each for each in params if each.shape == value.shape[-1:]]
    if len(vectors) == len(params):
        for scale, *rest in itertools.permutations(vectors):
            yield (value - sum(rest)) / scale


def _is_normalised(sequence: Array, normalised: Array) -> bool:
    """Returns whether tokens are those of a sequence, less their mean or as they are, each but for a factor."""
    goal = _units(normalised)
    return any(
        np.linalg.norm(_units(each) - goal) <= _FITS * np.linalg.norm(goal)
        for each in (sequence - sequence.mean(-1, keepdims=True), sequence)
    )


def _units(tokens: Array) -> Array:
    size = np.linalg.norm(tokens, axis=-1, keepdims=True)
    return tokens / np.where(size > 0, size, 1)


def _flattened(features: Array, name: str, shape: tuple[int, ...]) -> Iterator[tuple[str, Array]]:
    """Yields features as `[examples, tokens, channels]`, by the order in which their axes are flattened."""
    if not 3 <= features.ndim <= _MOST_AXES or len(features) != shape[0]:
        return
    for channel in dict.fromkeys((features.ndim - 1, 1)):
        if features.shape[channel] == shape[2]:
            for order in itertools.permutations(axis for axis in range(1, features.ndim) if axis != channel):
                words = f"the axes {[*order]} of `{name}` flattened" if len(order) > 1 else ""
                yield words, features.transpose(0, *order, channel).reshape(shape[0], -1, shape[2])
            if features.ndim > 3:
                moved = np.moveaxis(features, channel, 1)
                yield f"`{name}` reshaped with its channels first", moved.reshape(shape[0], -1, shape[2])


def _positions(tables: Mapping[str, Array], count: int) -> Iterator[tuple[str, Array]]:
    """Yields positions for a number of tokens: none, and the rows of each table."""
    yield "no positions", np.zeros(1)
    for name, table in tables.items():
        for first in range(min(_MOST_OFFSET, len(table) - count) + 1):
            yield f"`{name}`" + (f" from its row {first} on" if first else ""), table[first : first + count]


def _joined(flat: Array, name: str, singles: Mapping[str, Array], count: int) -> Iterator[tuple[str, Array]]:
    """Yields features of a number of tokens: alone, or with a token that is a parameter before or behind them."""
    if flat.shape[1] == count:
        yield "", flat
    elif flat.shape[1] == count - 1:
        for of, single in singles.items():
            token = np.broadcast_to(single, (len(flat), 1, single.size))
            yield f"`{of}` before `{name}`", np.concatenate([token, flat], 1)
            yield f"`{of}` behind `{name}`", np.concatenate([flat, token], 1)


def _difference(own: list[_Form], other: list[_Form]) -> str:
    """Returns in what the nearest of two sequences differ, in words; "" where they may be the same, or several are."""
    if not own or not other or {*own} & {*other}:
        return ""
    names = [each.name for each in fields(_Form)]
    apart = [
        [(getattr(one, name), getattr(two, name)) for name in names if getattr(one, name) != getattr(two, name)]
        for one, two in itertools.product(own, other)
    ]
    nearest = {tuple(each) for each in apart if len(each) == min(map(len, apart))}
    if len(nearest) > 1:
        return ""
    (pairs,) = nearest
    told = (" and ".join(words) for words in zip(*pairs, strict=True))
    return "which reads a sequence with {}, and in the candidate with {}".format(*told)
