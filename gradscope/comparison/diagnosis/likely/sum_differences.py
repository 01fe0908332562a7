"""`SumDifferences` tells that two values are functions of other sums, as where a port leaves a residual out.

Neither program may have an entry for the sum: a block of PyTorch adds what it is given and applies a rectifier to that.
Which values are added up, and which function is applied, the values show by themselves: a value is that of one other
before it or of the sum of two. Whatever else makes both values, their difference may be a value before them, or that of
two: the port leaves out a term, or has another one in its place.

`gradient_in_words` tells the same of gradients. A value has the gradients of all that is made of it, added up: behind a
`stop_gradient`, that of a sum which it is a term of is not among them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.diagnosis.refuting.activation_functions import ELEMENTWISE, Elementwise
from gradscope.comparison.diagnosis.refuting.float_tensors import FloatTensors
from gradscope.comparison.layout.layouts import usually_arranged
from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.dump.interfaces import DumpSource
from gradscope.naming import ACTIVATION, ACTIVATION_GRAD, INPUT, key_of, printable, split_key

#: The most values before another that may be added up, those nearest to it.
_MOST_TERMS: Final = 48

#: The number of elements by which sums are told apart, and the fewest numbers among them that tell anything.
_SAMPLE: Final = 256
_FEWEST: Final = 8

#: The relative error up to which a value is that of a sum.
_ROUNDING: Final = 1e-5

#: The share of a difference that is left where a term makes it, and of a value up to which rounding makes one.
_LEFT: Final = 1e-3
_FINE: Final = 1e-6

#: How many terms are several, and of how many a difference may be, and how far their factors from whole numbers.
_FEWEST_OF_SEVERAL: Final = 2
_MOST_LEFT: Final = 4
_NEAR: Final = 1e-2

#: The functions of a sum, by their words.
_FUNCTIONS: Final[Mapping[str, Elementwise]] = MappingProxyType({"": np.copy, **ELEMENTWISE})


class SumDifferences:
    """SumDifferences finds the sums that values are functions of.

    Args:
        dumps: The dumps.
        pairs: The pairs of values by the candidate's owners.
    """

    def __init__(self, dumps: Dumps, pairs: Mapping[str, Match]) -> None:
        self._pairs = pairs
        self._ref, self._cand = _Values(dumps.ref), _Values(dumps.cand)

    def words(self, match: Match) -> str:
        """Returns a clause about two values that are functions of other sums; "" where they are not.

        Args:
            match: The pair of the values.
        """
        one, other = self._ref.sum_of(match.ref), self._cand.sum_of(match.cand)
        if one is None or other is None:
            return self._of_terms(match)
        own, its = sorted(map(_quoted, one.terms)), sorted(map(self._name, other.terms))
        if (own, one.function) == (its, other.function):
            return ""
        # A layer and its last operation are one value by two names: of either, the sum is the same.
        counterparts = [self._pairs[key].ref for key in other.terms if key in self._pairs]
        if len(counterparts) == len(other.terms) and self._ref.is_sum(
            match.ref, _Sum((*counterparts,), other.function)
        ):
            return ""
        return f"is {one.words(own)} in the reference, and {other.words(its)} in the candidate"

    def _of_terms(self, match: Match) -> str:
        """Returns a clause about terms by which the candidate's value differs from the reference's; "" for none."""
        one, other = self._ref.tensor(match.ref), self._cand.made(match.recipe)
        if one is None or other is None or one.shape != other.shape or one.size < _FEWEST:
            return ""
        terms = self._ref.terms_of(match.ref, one.shape)
        apart, most = other - one, _FINE * float(np.linalg.norm(one))
        if not terms or not float(np.linalg.norm(apart)) * _LEFT > most:
            return ""
        values = [each for _, each in terms]
        left = _left_by(apart, values)
        several = _several_left_by(apart, values) if left is None else [[] if at is None else [at] for at in left]
        less, more = ([terms[at][0] for at in each] for each in several)
        if less and more:
            return f"is the reference's with {_added(more)} in place of {_added(less)}"
        named = " and ".join(map(_quoted, less or more))
        return f"is the reference's {'less' if less else 'plus'} {named}" if named else ""

    def _name(self, key: str) -> str:
        """Returns the reference's name of a value of the candidate, or else its own."""
        return _quoted(self._pairs[key].ref if key in self._pairs else key)


def gradient_in_words(dumps: Dumps, match: Match, agreeing: Collection[str]) -> str:
    """Returns a clause about a gradient that the candidate's lacks, or has too many of; "" for none.

    Args:
        dumps: The dumps.
        match: The pair of the gradients of a value that agrees.
        agreeing: The keys of the reference's gradients that agree.
    """
    tensors, entry = FloatTensors(dumps.ref), dumps.ref.entry(match.ref)
    one, other = tensors.tensor(match.ref), FloatTensors(dumps.cand).made(match.recipe)
    if one is None or other is None or one.shape != other.shape or one.size < _FEWEST or not other.any():
        return ""
    later = (key for key in agreeing if split_key(key)[0] == ACTIVATION_GRAD)
    entries = {key: found for key in later if (found := dumps.ref.entry(key)).site.index > entry.site.index}
    fitting = [key for key, found in entries.items() if sorted(found.shape) == sorted(one.shape)]
    nearest = sorted(fitting, key=lambda key: entries[key].site.index)[:_MOST_TERMS]
    # A sum comes after its terms, which have its gradient.
    known = [(key, tensor) for key in reversed(nearest) if (tensor := tensors.tensor(key)) is not None]
    terms = [(key, way) for key, tensor in known for way in usually_arranged(tensor, one.shape)]
    left = _left_by(other - one, [way for _, way in terms], most=1) if terms else None
    if left is None:
        return ""
    less, more = (None if at is None else f"the gradient of {_quoted(terms[at][0])}" for at in left)
    return f"is the reference's less {less}" if more is None else f"is the reference's plus {more}"


class _Sum(NamedTuple):
    """_Sum has the keys of one value or two, and the function of their sum in words; "" for none."""

    terms: tuple[str, ...]
    function: str

    def words(self, names: Sequence[str]) -> str:
        """Returns the sum in words.

        Args:
            names: The names of its terms.
        """
        total = " + ".join(names)
        return f"the {self.function} of {total}" if self.function else total


class _Values:
    """_Values has the values of one program in the order in which it computes them.

    Args:
        source: The dump.
    """

    def __init__(self, source: DumpSource) -> None:
        self._source, self._tensors = source, FloatTensors(source)
        self.tensor, self.made = self._tensors.tensor, self._tensors.made
        self._entries = [
            each
            for each in source.manifest.entries
            if each.family in (ACTIVATION, INPUT) and each.alias_of is None and each.absent is None
        ]

    def sum_of(self, key: str) -> _Sum | None:
        """Returns the sum of one or two values that a value is a function of; None where it is of none.

        Args:
            key: The key of the value.
        """
        value = self._tensors.tensor(key)
        if value is None or value.size < 2:
            return None
        keys = itertools.islice(self._before(key, lambda shape: shape == value.shape), _MOST_TERMS)
        known = {each: tensor for each in keys if (tensor := self._tensors.tensor(each)) is not None}
        return _sum_of(known, value)

    def terms_of(self, key: str, shape: tuple[int, ...]) -> list[tuple[str, Array]]:
        """Returns the keys of values that may be terms of another one, each in its shape in one of the usual ways.

        Args:
            key: The key of the value.
            shape: Its shape.
        """
        keys = itertools.islice(self._before(key, lambda own: sorted(own) == sorted(shape)), _MOST_TERMS)
        known = ((each, tensor) for each in keys if (tensor := self._tensors.tensor(each)) is not None)
        return [(each, way) for each, tensor in known for way in usually_arranged(tensor, shape)]

    def _before(self, key: str, fits: Callable[[tuple[int, ...]], bool]) -> list[str]:
        """Returns the keys of the values before another whose shapes fit, the nearest first."""
        index = self._source.entry(self._source.resolve(key)).site.index
        near = (each for each in self._entries if each.family == INPUT or each.site.index < index)
        before = sorted((each for each in near if fits(each.shape)), key=lambda each: -each.site.index)
        return [key_of(each.family, each.name) for each in before]

    def is_sum(self, key: str, of: _Sum) -> bool:
        """Returns whether a value is the function of the sum.

        Args:
            key: The key of the value.
            of: The sum.
        """
        value, *terms = map(self._tensors.tensor, (key, *of.terms))
        known = [each for each in terms if each is not None]
        if value is None or len(known) < len(terms) or any(each.shape != value.shape for each in known):
            return False
        whole = _FUNCTIONS[of.function](np.sum(known, axis=0))
        return bool(np.linalg.norm(whole - value) <= _ROUNDING * np.linalg.norm(value))


def _sum_of(terms: Mapping[str, Array], value: Array) -> _Sum | None:
    """Returns the sum of one or two of some terms, the fewest, that a value is a function of, or None."""
    step = -(-value.size // _SAMPLE)
    sample = value.ravel()[::step]
    if np.unique(sample).size < _FEWEST or not terms:
        return None
    made = np.stack([each.ravel()[::step] for each in terms.values()])
    keys = list(terms)
    for chosen in ([(at,) for at in range(len(keys))], [*itertools.combinations(range(len(keys)), 2)]):
        sums = np.stack([made[list(few)].sum(0) for few in chosen]) if chosen else made[:0]
        for words, function in _FUNCTIONS.items():
            left = np.linalg.norm(function(sums) - sample, axis=1)
            for at in np.flatnonzero(left <= _ROUNDING * np.linalg.norm(sample)):
                names = tuple(keys[each] for each in chosen[at])
                whole = function(np.sum([terms[name] for name in names], axis=0))
                if np.linalg.norm(whole - value) <= _ROUNDING * np.linalg.norm(value):
                    return _Sum(names, words)
    return None


def _left_by(apart: Array, terms: Sequence[Array], most: int = 2) -> tuple[int | None, int | None] | None:
    """Returns which of some terms a difference is less, and which it is more; None where it is neither.

    Args:
        apart: The difference.
        terms: The terms.
        most: Of how many terms it may be.
    """
    step = -(-apart.size // _SAMPLE)
    sample, made = apart.ravel()[::step], np.stack([each.ravel()[::step] for each in terms])
    single = [*((at, None) for at in range(len(terms))), *((None, at) for at in range(len(terms)))]
    for chosen in (single, [*itertools.permutations(range(len(terms)), 2)])[:most]:
        sums = np.stack([_signed(made, each) for each in chosen]) if chosen else made[:0]
        for at in np.flatnonzero(np.linalg.norm(sums - sample, axis=1) <= _LEFT * np.linalg.norm(sample)):
            if np.linalg.norm(_signed(terms, chosen[at]) - apart) <= _LEFT * np.linalg.norm(apart):
                return chosen[at]
    return None


def _several_left_by(apart: Array, terms: Sequence[Array]) -> tuple[list[int], list[int]]:
    """Returns which of some terms a difference is less, and which it is more, of several; none where it is of none.

    Args:
        apart: The difference.
        terms: The terms, those nearest to it first: what others are added up in comes before these.
    """
    step = -(-apart.size // _SAMPLE)
    sample, made = apart.ravel()[::step], np.stack([each.ravel()[::step] for each in terms], -1)
    if not (np.isfinite(sample).all() and np.isfinite(made).all()):
        return [], []
    for count in range(_FEWEST_OF_SEVERAL, min(len(terms), sample.size // _FEWEST) + 1):
        numbers = np.linalg.lstsq(made[:, :count], sample, rcond=None)[0]
        if np.linalg.norm(made[:, :count] @ numbers - sample) <= _LEFT * np.linalg.norm(sample):
            signs = np.round(numbers)
            if np.abs(numbers - signs).max() > _NEAR or np.abs(signs).max() > 1 or np.abs(signs).sum() > _MOST_LEFT:
                return [], []
            whole = np.sum([sign * each for sign, each in zip(signs, terms, strict=False) if sign], axis=0)
            less, more = (np.flatnonzero(signs == sign).tolist() for sign in (-1, 1))
            return (less, more) if np.linalg.norm(whole - apart) <= _LEFT * np.linalg.norm(apart) else ([], [])
    return [], []


def _signed(terms: Sequence[Array] | Array, chosen: tuple[int | None, int | None]) -> Array:
    """Returns what is left of some terms where one is taken away and one is added."""
    less, more = chosen
    return (0.0 if more is None else terms[more]) - (np.zeros(1) if less is None else terms[less])


def _added(keys: Sequence[str]) -> str:
    return " + ".join(map(_quoted, keys))


def _quoted(key: str) -> str:
    return f"`{printable(split_key(key)[1])}`"
