"""`SummedReads` tells in what norms differ that read a sum for which a program has no entry.

A transformer that normalises behind its residual sums has none for them, and one that adds up embeddings neither. A
norm multiplies each group of the sum's elements, less their mean, by one number. Thus the terms, and by what they are
multiplied, follow from each group by least squares, and have to be the same for all of them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.diagnosis.likely.layers.norms.named_sums import AGREE, of_other_terms, summed
from gradscope.comparison.diagnosis.likely.layers.norms.norm_differences import MOST_GROUPS, is_norm, norm_difference
from gradscope.comparison.diagnosis.likely.layers.norms.terms_before import Term, TermsBefore
from gradscope.comparison.diagnosis.refuting.float_tensors import FloatTensors
from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.dump.interfaces import DumpSource
from gradscope.naming import printable, split_key

#: The most norms that are looked at, and the most elements of a value.
_MOST_PAIRS: Final = 4
_MOST_ELEMENTS: Final = 1 << 18

#: The number of groups by which multiples are found, of elements of each, and the fewest of them for each term.
_GROUPS: Final = 6
_ELEMENTS: Final = 256
_FEWEST: Final = 2

#: The relative error up to which a group is that of a sum.
_ROUNDING: Final = 1e-4

#: Both tensors of a pair, in the layout of the reference.
_Both = tuple[Array, Array]


class SummedReads:
    """SummedReads finds the sums that norms read.

    Args:
        dumps: The dumps.
        pairs: The pairs of values and parameters by the candidate's owners.
    """

    def __init__(self, dumps: Dumps, pairs: Mapping[str, Match]) -> None:
        self._dumps, self._pairs, self._left = dumps, pairs, _MOST_PAIRS
        own = {dumps.ref.resolve(each.ref) for each in pairs.values()}
        self._ref, self._cand = _Values(dumps.ref, own), _Values(dumps.cand, pairs.keys())

    def words(self, match: Match, values: _Both, params: Sequence[_Both]) -> tuple[str, bool]:
        """Returns a clause about norms of other sums, or other norms of a sum, and whether nothing else is at fault.

        Nothing is where both read the same, or other sums of values that the other program has, too. The clause is ""
        where nothing is known.

        Args:
            match: The pair of what the norms make.
            values: Both of them, in the layout of the reference.
            params: Their parameters, in that layout.
        """
        vectors = all(1 in (each.ndim, each.size) for pair in params for each in pair)
        if not params or not vectors or self._left <= 0 or len(match.recipe.keys) != 1:
            return "", False
        self._left -= 1
        of_ref, of_cand = [own for own, _ in params], [its for _, its in params]
        value = self._cand.tensor(match.cand)
        one, other = self._ref.sum_of(match.ref, values[0], of_ref), self._cand.sum_of(match.cand, value, of_cand)
        if one is None and other is not None:
            one = self._ref.sum_of(match.ref, values[0], of_ref, with_addend=True)
        if other is None and one is not None:
            other = self._cand.sum_of(match.cand, value, of_cand, with_addend=True)
        if one is not None and other is not None and (one.addend is None) is not (other.addend is None):
            words = f"{other.statement(self._name)}, and the reference {one.statement(_quoted)}"
            return words, self._have_counterparts(one, other)
        read_by_cand = None if other is None else match.recipe.made_of([other.total])
        read = one.total if one is not None else read_by_cand
        if read is None:
            return "", False
        # One program may have a name for the sum of which the other has the terms.
        if one is not None and other is not None and read_by_cand is not None and not _agree(read, read_by_cand):
            own, its = one.named(_quoted), other.named(self._name)
            if own != its:
                return of_other_terms(own, its), self._have_counterparts(one, other)
            if _agree(np.sort(read, None), np.sort(read_by_cand, None)):
                return f"reads {summed(own)} in another order than the reference", True
        return norm_difference(values, [(read, read if read_by_cand is None else read_by_cand), *params]), True

    def _have_counterparts(self, one: _Sum, other: _Sum) -> bool:
        return self._ref.has_counterparts(one) and self._cand.has_counterparts(other)

    def _name(self, key: str) -> str:
        """Returns the reference's name of a value of the candidate, or else its own."""
        return _quoted(self._dumps.ref.resolve(self._pairs[key].ref) if key in self._pairs else key)


class _Sum(NamedTuple):
    """_Sum is a sum of multiples of values.

    Attributes:
        terms: By what each value is multiplied, by its key.
        total: The sum.
        addend: The key of a value that is added to what the norm makes of the sum; None for none.
    """

    terms: Mapping[str, float]
    total: Array
    addend: str | None = None

    def named(self, name: Callable[[str], str]) -> dict[str, float]:
        """Returns by what each value is multiplied, by its name.

        Args:
            name: Returns the name of a value, given its key.
        """
        return {name(key): number for key, number in self.terms.items()}

    def statement(self, name: Callable[[str], str]) -> str:
        """Returns what the layer does with the sum, in words.

        Args:
            name: Returns the name of a value, given its key.
        """
        normalised = f"normalises {summed(self.named(name))}"
        return normalised if self.addend is None else f"{normalised} and then adds {name(self.addend)}"


class _Values:
    """_Values has the values of one program in the order in which it computes them.

    Args:
        source: The dump.
        paired: The owners of its values and parameters that have a counterpart.
    """

    def __init__(self, source: DumpSource, paired: Collection[str]) -> None:
        self._terms = TermsBefore(source, paired)
        self.tensor = FloatTensors(source).tensor

    def has_counterparts(self, found: _Sum) -> bool:
        """Returns whether all terms of a sum, and what is added to the norm, have a counterpart."""
        return self._terms.have_counterparts([*found.terms, *([] if found.addend is None else [found.addend])])

    def sum_of(
        self, key: str, value: Array | None, params: Sequence[Array], *, with_addend: bool = False
    ) -> _Sum | None:
        """Returns the sum that a norm reads; None where it is none of the values before it.

        Args:
            key: The key of what the layer makes.
            value: That, in the layout of the program.
            params: Its parameters.
            with_addend: Whether the layer adds one of those values to what the norm makes.
        """
        if value is None or not 1 < value.size <= _MOST_ELEMENTS or value.ndim < 2:
            return None
        make = _sum_with_addend if with_addend else _sum
        found = (make(before, value, params) for before in self._terms.of(key, value.shape) if before)
        return next((each for each in found if each is not None), None)


def _sum(before: Sequence[Term], value: Array, params: Sequence[Array]) -> _Sum | None:
    """Returns the sum of multiples of some terms of which a norm makes a value."""
    keys, tensors = [key for key, _ in before], [tensor for _, tensor in before]
    for norm in _norms([each.reshape(-1) for each in params], value.shape):
        if (multiples := norm.multiples(tensors, value)) is not None:
            total = np.sum([number * each for number, each in zip(multiples, tensors, strict=False)], axis=0)
            if is_norm([total, *params], value):
                return _Sum({key: number for key, number in zip(keys, multiples, strict=False) if number}, total)
    return None


def _sum_with_addend(before: Sequence[Term], value: Array, params: Sequence[Array]) -> _Sum | None:
    """Returns the same where one of the terms is added to what the norm makes."""
    found = ((key, _sum(before, value - tensor, params)) for key, tensor in before)
    return next((own._replace(addend=key) for key, own in found if own is not None), None)


class _Norm(NamedTuple):
    """_Norm is a norm of groups of what it reads.

    Attributes:
        scale: By what it multiplies each channel, in a shape that spreads; 1 without a scale.
        bias: What it adds; 0 without a bias.
        channel: The axis of the channels.
        axes: The axes of a group.
        groups: The number of groups of channels, of which each group has the positions, too; 0 where the axes say all.
        centred: Whether the mean is subtracted.
    """

    scale: Array | float
    bias: Array | float
    channel: int
    axes: tuple[int, ...]
    groups: int
    centred: bool

    def multiples(self, terms: Sequence[Array], value: Array) -> list[float] | None:
        """Returns by what the first of some terms are multiplied in what the norm reads; None where in nothing.

        Args:
            terms: Terms in the shape of the value, those first that are the likeliest.
            value: What the norm makes.
        """
        made = _few(self._grouped(value - self.bias))
        size = np.linalg.norm(made, axis=1)
        if not size.all():
            return None
        scale = _few(self._grouped(np.broadcast_to(self.scale, value.shape)))
        columns: list[Array] = []
        for term in terms[: made.shape[1] // _FEWEST]:
            read = self._grouped(term)
            columns.append(scale * _few(read - read.mean(1, keepdims=True) * self.centred))
            if not (np.isfinite(made).all() and np.isfinite(columns[-1]).all()):  # the largest numbers overflow
                return None
            found = [_least(np.stack(group, -1), own) for *group, own in zip(*columns, made, strict=True)]
            if all(left <= _ROUNDING * own for (_, left), own in zip(found, size, strict=True)):
                return _common([numbers for numbers, _ in found])
        return None

    def _grouped(self, value: Array) -> Array:
        """Returns the groups of a value, `[groups, elements]`."""
        if self.groups:
            return np.moveaxis(value, self.channel, 1).reshape(len(value) * self.groups, -1)
        rest = [axis for axis in range(value.ndim) if axis not in self.axes]
        return value.transpose(*rest, *self.axes).reshape(math.prod(value.shape[axis] for axis in rest), -1)


def _few(groups: Array) -> Array:
    """Returns some elements of some groups."""
    steps = (-(-size // most) for size, most in zip(groups.shape, (_GROUPS, _ELEMENTS), strict=True))
    return groups[tuple(slice(None, None, step) for step in steps)]


def _norms(vectors: Sequence[Array], shape: tuple[int, ...]) -> Iterator[_Norm]:
    """Yields the norms of values of a shape that have some parameters: those of examples, of batches, and of groups."""
    for channel in dict.fromkeys((len(shape) - 1, 1)):
        along = [-1 if axis == channel else 1 for axis in range(len(shape))]
        fitting = [each.reshape(along) for each in vectors if each.size == shape[channel]]
        space = tuple(axis for axis in range(len(shape)) if axis != channel)
        pairs = [(one, other) for one, other in itertools.permutations((*fitting, None), 2) if one is not None]
        counts = range(1, min(shape[channel], MOST_GROUPS) + 1) if len(shape) > 2 else ()
        groups = [((), count, True) for count in counts if shape[channel] % count == 0]
        whole = [(axes, 0, centred) for axes, centred in itertools.product(((channel,), space), (True, False))]
        for (scale, bias), (axes, count, centred) in itertools.product(pairs, (*whole, *groups)):
            yield _Norm(scale, 0.0 if bias is None else bias, channel, axes, count, centred)


def _least(columns: Array, value: Array) -> tuple[Array, float]:
    """Returns by what numbers columns are multiplied that add up to about a value, and how far that is from it."""
    numbers = np.linalg.lstsq(columns, value, rcond=None)[0]
    return numbers, float(np.linalg.norm(columns @ numbers - value))


def _common(numbers: Sequence[Array]) -> list[float] | None:
    """Returns multiples that are the same for all groups but for one number of each; None where they are not.

    That number is chosen so that as many terms as can be are multiplied by one, and else the others by less.
    """
    sizes = np.abs(numbers)
    first = int(np.argmax(sizes.min(0) > AGREE * sizes.max()))
    ratios = np.array([each / each[first] for each in numbers]) if sizes[:, first].all() else np.full((1, 1), np.nan)
    common = np.median(ratios, axis=0)
    if not np.all(np.abs(ratios - common) <= AGREE * np.abs(common).max()):
        return None
    common[np.abs(common) <= AGREE * np.abs(common).max()] = 0.0
    rated = [(np.sum(np.abs(common - each) <= AGREE * abs(each)), abs(each), each) for each in common if each > 0]
    common = common / max(rated)[-1]
    near = np.where(np.abs(common - np.round(common)) <= AGREE, np.round(common), common)
    return [float(each) for each in near]


def _agree(one: Array, other: Array) -> bool:
    return bool(np.linalg.norm(other - one) <= AGREE * np.linalg.norm(one))


def _quoted(key: str) -> str:
    return f"`{printable(split_key(key)[1])}`"
