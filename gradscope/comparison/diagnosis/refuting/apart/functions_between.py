"""`function_between` finds the function that one value of a pair is of the other, such as an activation function.

One program may have an activation function inside of a layer and the other behind it. A pair that only its place
suggests then differs, whatever else is right. Where the values show the function, the pair is either that, or one
program leaves the function out. The gradients of the program that has the argument decide, where they can
(`is_applied`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.diagnosis.refuting.activation_functions import ELEMENTWISE, FLAT, Elementwise
from gradscope.comparison.diagnosis.refuting.apart.dense_readers import arriving_at
from gradscope.comparison.diagnosis.refuting.apart.functions_read import function_read, reads_other_function
from gradscope.comparison.diagnosis.refuting.apart.pair_values import norm_beside_fill, with_gradients
from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.naming import printable, split_key
from gradscope.naming.wording import brief

#: The largest number of elements that are compared, and the numbers that rule out a function of elements, and of rows.
MOST_ELEMENTS: Final = 1 << 22
_SAMPLE: Final = 256
_SAMPLE_OF_ROWS: Final = 1024

#: The least number of elements that show that a number is added to a function.
_LEAST_SHIFTED: Final = 8

#: The relative error up to which gradients agree with a use of a function.
_AGREE: Final = 1e-3


def _log_softmax(x: Array) -> Array:
    shifted = x - x.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


#: The functions of the last axis, by name.
_OF_ROWS: Final[Mapping[str, Elementwise]] = MappingProxyType({
    "softmax": lambda x: np.exp(_log_softmax(x)),
    "log_softmax": _log_softmax,
})  # fmt: skip


def _of_largest(value: Array) -> Mapping[str, Elementwise]:
    """Returns the functions of rows, by name, that are zero but for as many elements as those of a value.

    A router sends each token to some experts, and has zeros for the others.
    """
    counts = np.unique(np.count_nonzero(value, axis=-1))
    if len(counts) != 1 or not 0 < counts[0] < value.shape[-1]:
        return {}
    count = int(counts[0])

    def is_large(x: Array) -> Array:
        return x >= np.partition(x, -count)[..., [-count]]

    words = "largest element" if count == 1 else f"{count} largest elements"
    return {
        f"softmax of the {words}": lambda x: np.exp(_log_softmax(np.where(is_large(x), x, -np.inf))),
        f"{words} of the softmax": lambda x: np.where(is_large(x), np.exp(_log_softmax(x)), 0.0),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionBetween:
    """FunctionBetween stores which function one value of a pair is of the other.

    Attributes:
        name: The function.
        axis: The axis of its rows in the reference's layout; None for a function of single elements.
        of_ref: Whether the candidate's value is the function of the reference's, and not the other way round.
        offset: What is added to the function, as the least deviation of a distribution is.
    """

    name: str
    axis: int | None
    of_ref: bool
    offset: float = 0.0

    @property
    def words(self) -> str:
        """The function, in words."""
        return f"{self.name} plus {brief(self.offset)}" if self.offset else self.name

    def stages(self, match: Match) -> dict[str, str]:
        """Returns what the values of a pair and their gradients are, in words, by their keys.

        Args:
            match: The pair.
        """
        argument, value = (match.ref, match.cand) if self.of_ref else (match.cand, match.ref)
        words = {
            value: f"the {self.words} of `{printable(split_key(argument)[1])}`",
            argument: f"the value of which `{printable(split_key(value)[1])}` is the {self.words}",
        }
        return with_gradients(words)


def function_between(dumps: Dumps, match: Match, tolerance: float) -> FunctionBetween | None:
    """Returns the function that one value of a pair is of the other; None where it is none, or is not known.

    Args:
        dumps: The dumps of the pair.
        match: The pair.
        tolerance: The largest relative error.
    """
    values = _values(dumps, match)
    found = [] if values is None else list(_functions(*values, tolerance))
    if not found:
        return None
    # A large error may hide which of several functions it is, and the program that has the argument shows one of them.
    read = {
        of_ref: function_read(source, key) for of_ref, source, key in
        ((True, dumps.ref, match.ref), (False, dumps.cand, match.cand)) if len(found) > 1
    }  # fmt: skip

    def likelihood(each: tuple[FunctionBetween, float]) -> tuple[bool, bool, float]:
        function, error = each
        return function.offset != 0, function.name != read.get(function.of_ref), error

    return min(found, key=likelihood)[0]


def _functions(ref: Array, cand: Array, tolerance: float) -> Iterator[tuple[FunctionBetween, float]]:
    """Yields the functions that one value may be of the other, each with the norm of the difference."""
    for of_ref, argument, value in ((False, cand, ref), (True, ref, cand)):
        limit = tolerance * norm_beside_fill(value)
        for name, function in ELEMENTWISE.items():
            for offset in _offsets(function, argument, value, limit):
                shifted = partial(_shifted, function, offset)
                error = _error(shifted, argument, value, limit=limit, some=_some_elements)
                if error <= limit:
                    yield FunctionBetween(name=name, axis=None, of_ref=of_ref, offset=offset), error
        for axis in (axis for axis in reversed(range(value.ndim)) if value.shape[axis] > 1):
            rows = np.moveaxis(argument, axis, -1), np.moveaxis(value, axis, -1)
            for name, function in ({**_OF_ROWS} | {**_of_largest(rows[1])}).items():
                error = _error(function, *rows, limit=limit, some=_some_rows)
                if error <= limit:
                    yield FunctionBetween(name=name, axis=axis, of_ref=of_ref), error


def is_applied(dumps: Dumps, match: Match, found: FunctionBetween) -> bool | None:
    """Returns whether the program that has the argument of a function applies it behind; None where nothing shows it.

    A softmax does not change where a number is added to all of a row, and sends back gradients that add up to zero. A
    rectifier sends back zeros where its argument is negative. A smooth function sends back the gradient that arrives at
    its result in the other program, times its slope. The gradient of a kernel shows which function a layer reads
    (`functions_read`).

    Args:
        dumps: The dumps of the pair.
        match: The pair.
        found: The function that one value of the pair is of the other.
    """
    source, key = (dumps.ref, match.ref) if found.of_ref else (dumps.cand, match.cand)
    gradient = arriving_at(source, key, None if found.of_ref else match.recipe)
    values = _values(dumps, match)
    if gradient is None or values is None or not np.any(gradient):
        return None
    if found.axis is not None:
        return bool(np.abs(gradient.sum(found.axis)).sum() <= _AGREE * np.abs(gradient).sum())
    if found.name in FLAT:
        return not np.any(gradient[FLAT[found.name](values[0 if found.of_ref else 1])])
    read = None if found.offset else function_read(source, key)
    if read is not None:  # more exact than a gradient that comes from the other program
        return read == found.name
    other, its = (dumps.cand, match.cand) if found.of_ref else (dumps.ref, match.ref)
    if not found.offset and reads_other_function(source, key) and function_read(other, its) == "":
        return True  # a program that leaves out the function alone reads the argument as the other reads the value
    return _is_chained(dumps, match, found, values[0 if found.of_ref else 1], gradient) or None


class OtherFunction(NamedTuple):
    """OtherFunction is what the program that has the argument of a function applies in its place.

    Attributes:
        words: What the reference's value of the pair is, in words.
        error: The relative error that this makes.
    """

    words: str
    error: float


def unlike_function(dumps: Dumps, match: Match, found: FunctionBetween) -> OtherFunction | None:
    """Returns what the program that has the argument of a function applies in its place; None where that is not known.

    Args:
        dumps: The dumps of the pair.
        match: The pair.
        found: The function that one value of the pair is of the other.
    """
    source, key = (dumps.ref, match.ref) if found.of_ref else (dumps.cand, match.cand)
    name, values = function_read(source, key), _values(dumps, match)
    if not name or name == found.name or values is None:
        return None
    argument, value = values if found.of_ref else values[::-1]
    other = f"`{printable(split_key(match.cand)[1])}`"
    words = (
        f"goes through {name}, and {other} is its {found.words}"
        if found.of_ref
        else f"is the {found.words} of {other}, which goes through {name} in the candidate"
    )
    error = float(np.linalg.norm(ELEMENTWISE[name](argument) - value) / np.linalg.norm(value))
    return OtherFunction(words, error)


def _is_chained(dumps: Dumps, match: Match, found: FunctionBetween, argument: Array, gradient: Array) -> bool:
    """Returns whether the gradient at the argument of a function is that at its value, by the chain rule.

    Args:
        dumps: The dumps of the pair.
        match: The pair.
        found: The function of single elements.
        argument: The argument, in the reference's layout.
        gradient: The gradient that arrives at it.
    """
    other, key = (dumps.cand, match.cand) if found.of_ref else (dumps.ref, match.ref)
    arriving = arriving_at(other, key, match.recipe if found.of_ref else None)
    if arriving is None or arriving.shape != gradient.shape or not np.any(arriving):
        return False
    step, function = 1e-5 * np.maximum(np.abs(argument), 1.0), ELEMENTWISE[found.name]
    slope = (function(argument + step) - function(argument - step)) / (2 * step)
    # Where the slope is one, the gradients say as much of a function that one program leaves out.
    near, apart = (np.linalg.norm(gradient - each) for each in (slope * arriving, arriving))
    return bool(near <= _AGREE * np.linalg.norm(gradient) < apart)


def _values(dumps: Dumps, match: Match) -> tuple[Array, Array] | None:
    """Returns both values in the reference's layout; None where there are none that can be compared, or too many."""
    if not 2 <= math.prod(dumps.ref.entry(match.ref).shape) <= MOST_ELEMENTS:
        return None
    if not (dumps.ref.has_tensor(match.ref) and all(map(dumps.cand.has_tensor, match.recipe.keys))):
        return None
    one, other = dumps.ref.array(match.ref), match.recipe.array(dumps.cand)
    if one.shape != other.shape or not (np.isrealobj(one) and np.isrealobj(other)):
        return None
    one, other = one.astype(np.float64), other.astype(np.float64)
    return (one, other) if np.isfinite(one).all() and np.isfinite(other).all() else None


def _offsets(function: Elementwise, argument: Array, value: Array, limit: float) -> Iterator[float]:
    """Yields what may be added to a function: nothing, and what some elements show."""
    yield 0.0
    sample, expected = _some_elements(argument), _some_elements(value)
    offset = float(np.mean(expected - function(sample)))
    if sample.size >= _LEAST_SHIFTED and abs(offset) * math.sqrt(value.size) > limit:
        yield offset


def _shifted(function: Elementwise, offset: float, argument: Array) -> Array:
    return function(argument) + offset


def _some_elements(array: Array) -> Array:
    return array.reshape(-1)[:: -(-array.size // _SAMPLE)]


def _some_rows(array: Array) -> Array:
    count = array.size // array.shape[-1]
    positions = np.arange(0, count, -(-count // max(1, _SAMPLE_OF_ROWS // array.shape[-1])))
    return array[np.unravel_index(positions, array.shape[:-1])] if array.ndim > 1 else array


def _error(
    function: Elementwise, argument: Array, value: Array, *, limit: float, some: Callable[[Array], Array]
) -> float:
    """Returns by how much a value is no function of an argument; infinity where some of the elements rule it out.

    Args:
        function: The function.
        argument: The argument.
        value: The value.
        limit: The largest norm of the difference.
        some: Selects some of the elements, or of the rows.
    """
    sample, expected = some(argument), some(value)
    # The sample is held to the scale of all elements, and not so strictly that its own error would rule a function out.
    if np.linalg.norm(function(sample) - expected) > 10 * limit * math.sqrt(sample.size / value.size):
        return math.inf
    return float(np.linalg.norm(function(argument) - value))
