"""`UnpairedVectors` are biases and scales that the layer of one program uses and that of the other lacks or ignores.

Where all else is alike, one value is the other plus the bias, or times the scale, whatever both layers read; or a value
that both read is added to another one, and one program scales it first.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.diagnosis.refuting.float_tensors import FloatTensors
from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.json_text import as_float
from gradscope.dump.manifest.layer_graph import sources_of
from gradscope.naming import ACTIVATION, PARAM, PARAM_GRAD, key_of, printable, split_key

#: The largest number of elements of a value that is looked at.
_MOST_ELEMENTS: Final = 1 << 22

#: The most vectors of a layer that are looked at.
_MOST_VECTORS: Final = 8

#: The share of a difference that is left where a vector makes it: rounding of types of 16 bits.
_LEFT: Final = 0.02


class UnpairedVector(NamedTuple):
    """An `UnpairedVector` is a parameter with one axis that one program has.

    Attributes:
        name: Its name there.
        array: Its elements, in float64.
        in_ref: Whether that is the reference.
    """

    name: str
    array: Array
    in_ref: bool


class UnpairedVectors:
    """UnpairedVectors finds what the layer of one program has beyond that of the other.

    Args:
        dumps: The dumps.
        matches: Their pairs.
    """

    def __init__(self, dumps: Dumps, matches: Sequence[Match]) -> None:
        self._dumps = dumps
        params = [each for each in matches if split_key(each.ref)[0] == PARAM]
        self._params = {dumps.ref.resolve(each.ref): each for each in params}
        self._of_cand = {dumps.cand.resolve(key): each for each in params for key in each.recipe.keys}
        self._sources = [sources_of(each.manifest.layers) for each in (dumps.ref, dumps.cand)]
        self._keys = frozenset(dumps.ref.keys()), frozenset(dumps.cand.keys())
        self._ref, self._cand = FloatTensors(dumps.ref), FloatTensors(dumps.cand)

    def of(self, match: Match) -> list[UnpairedVector]:
        """Returns the vectors that the layer of one program uses alone.

        Args:
            match: The pair of the values that the layers make.
        """
        own, its = (
            sources.get(source.resolve(key), ())
            for sources, source, key in zip(
                self._sources, (self._dumps.ref, self._dumps.cand), (match.ref, match.cand), strict=True
            )
        )
        sides = (
            (self._dumps.ref, [key for key in own if self._is_left_out(self._params.get(key), in_ref=False)], True),
            (self._dumps.cand, [key for key in its if self._is_left_out(self._of_cand.get(key), in_ref=True)], False),
        )
        found = (
            UnpairedVector(printable(split_key(key)[1]), vector, in_ref)
            for source, keys, in_ref in sides
            for key in dict.fromkeys(keys)
            if (vector := self._vector(source, key)) is not None
        )
        return list(itertools.islice(found, _MOST_VECTORS))

    def words(self, match: Match, read: Sequence[Match]) -> str:
        """Returns a clause about a vector that makes one value of another; "" where none does.

        Args:
            match: The pair of the values.
            read: The pairs of what they are computed from, one of which may be scaled before it is added.
        """
        vectors = self.of(match)
        if not vectors or math.prod(self._dumps.ref.entry(match.ref).shape) > _MOST_ELEMENTS:
            return ""
        ref, cand = self._ref.tensor(match.ref), self._cand.made(match.recipe)
        if ref is None or cand is None or ref.shape != cand.shape:
            return ""
        limit = _LEFT * float(np.linalg.norm(cand - ref))
        shared = [vector for key in self._shared(match) if (vector := self._vector(self._dumps.ref, key)) is not None]
        terms = list(self._terms(read, ref.shape))
        for vector, axis in itertools.product(vectors, range(ref.ndim)):
            with_it, without = (ref, cand) if vector.in_ref else (cand, ref)
            if (own := _along(vector.array, axis, ref.shape)) is None:
                continue
            if np.linalg.norm(without + own - with_it) <= limit:
                return _told("adds", "add", vector)
            for added in (0.0, *(each for other in shared if (each := _along(other, axis, ref.shape)) is not None)):
                if np.linalg.norm((without - added) * own + added - with_it) <= limit:
                    return _told("multiplies by", "multiply by", vector)
            for name, term in terms:
                if np.linalg.norm(without + (own - 1) * term - with_it) <= limit:
                    return _told(f"multiplies `{name}` by", f"multiply `{name}` by", vector)
        return ""

    def _is_left_out(self, match: Match | None, *, in_ref: bool) -> bool:
        """Returns whether a program has no counterpart of a parameter, or does nothing with it."""
        return match is None or self._has_gradient(match, in_ref=in_ref) is False

    def is_used(self, match: Match, *, in_ref: bool) -> bool:
        """Returns whether a gradient shows that a program uses a parameter.

        Args:
            match: The pair of the parameter.
            in_ref: Whether that program is the reference.
        """
        return bool(self._has_gradient(match, in_ref=in_ref))

    def _has_gradient(self, match: Match, *, in_ref: bool) -> bool | None:
        """Returns whether a gradient arrives at a parameter; None where the dump has no gradient of it."""
        source, key = (self._dumps.ref, match.ref) if in_ref else (self._dumps.cand, match.cand)
        gradient = key_of(PARAM_GRAD, split_key(key)[1])
        known = self._keys[not in_ref]
        entry = source.entry(source.resolve(gradient)) if gradient in known else None
        return None if entry is None else entry.absent is None and as_float(entry.stats.get("rms", 1.0)) != 0

    def _terms(self, read: Sequence[Match], shape: tuple[int, ...]) -> Iterator[tuple[str, Array]]:
        """Yields values of a shape that both layers read, by their names in the reference.

        Its channels may be last where those of the sum are not, or the other way round.
        """
        for each in read:
            family, name = split_key(each.ref)
            entry = self._dumps.ref.entry(self._dumps.ref.resolve(each.ref))
            if family != ACTIVATION or sorted(entry.shape) != sorted(shape):
                continue
            if (term := self._ref.tensor(each.ref)) is not None:
                turned = (np.moveaxis(term, 1, -1), np.moveaxis(term, -1, 1)) if term.ndim > 2 else ()
                yield from ((printable(name), array) for array in (term, *turned) if array.shape == shape)

    def _vector(self, source: DumpSource, key: str) -> Array | None:
        """Returns a parameter with one axis; None for another tensor."""
        if split_key(key)[0] != PARAM or len(source.entry(key).shape) != 1:
            return None
        return (self._ref if source is self._dumps.ref else self._cand).tensor(key)

    def _shared(self, match: Match) -> Iterator[str]:
        """Yields the reference's keys of the parameters that the layers of both programs have."""
        read = self._sources[0].get(self._dumps.ref.resolve(match.ref), ())
        return itertools.islice((key for key in dict.fromkeys(read) if key in self._params), _MOST_VECTORS)


def _told(does: str, do: str, vector: UnpairedVector) -> str:
    if vector.in_ref:
        return f"does not {do} `{vector.name}`, and the reference does"
    return f"{does} `{vector.name}`, and the reference does not"


def _along(vector: Array, axis: int, shape: tuple[int, ...]) -> Array | None:
    """Returns a vector as it lies along an axis; None where that has another length."""
    if shape[axis] != vector.size:
        return None
    return vector.reshape([vector.size if each == axis else 1 for each in range(len(shape))])
