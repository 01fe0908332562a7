"""`ReductionDifferences` tells that a port takes the maximum of windows or axes where the reference takes the mean.

What is reduced may have an entry of its own, or only the layer that reads it: a norm or one with a kernel. Before it is
reduced, programs may apply two functions to it, as a GELU by tanh and one by the error function. Where both reduce
alike, the norms behind may differ, or the port may scale what it reduces.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.diagnosis.likely.layers.kernels.kernel_uses import Work, kernel_uses
from gradscope.comparison.diagnosis.likely.layers.kernels.scaled_reads import scaled_read
from gradscope.comparison.diagnosis.likely.layers.norms.norm_differences import is_norm, norm_difference
from gradscope.comparison.diagnosis.refuting.activation_functions import ELEMENTWISE
from gradscope.comparison.diagnosis.refuting.float_tensors import FloatTensors
from gradscope.comparison.diagnosis.step_kinds import recognised, reductions, windows_of
from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.dump.manifest.layer_graph import sources_of
from gradscope.naming import ACTIVATION, PARAM, printable, split_key

#: The most elements of a value of which functions are tried, and the most pairs of values that are looked at.
_MOST_ARGUMENTS: Final = 1 << 16
_MOST_PAIRS: Final = 8

#: Both tensors of a pair, in the layout of the reference.
_Both: TypeAlias = tuple[Array, Array]


class _Reduced(NamedTuple):
    """_Reduced is a reduction that a layer may read.

    Attributes:
        words: What it is, in words.
        function: The function of whose results it is; "" where it is of what a value is itself.
        value: Its value.
    """

    words: str
    function: str
    value: Array


class ReductionDifferences:
    """ReductionDifferences finds the reductions that the values of a pair are, or are computed from.

    Args:
        dumps: The dumps.
        matches: Their pairs.
    """

    def __init__(self, dumps: Dumps, matches: Sequence[Match]) -> None:
        self._ref, self._cand = FloatTensors(dumps.ref), FloatTensors(dumps.cand)
        self._sides = [
            (source, sources_of(source.manifest.layers), frozenset(source.keys()), {*map(source.resolve, keys)})
            for source, keys in (
                (dumps.ref, [each.ref for each in matches]),
                (dumps.cand, [key for each in matches for key in each.recipe.keys]),
            )
        ]
        self._left = _MOST_PAIRS

    def words(self, match: Match, read: Sequence[Match]) -> str:
        """Returns a clause about how the candidate reduces otherwise; "" where that is not known.

        Args:
            match: The pair of the values.
            read: The pairs of what they are computed from, parameters among them.
        """
        arguments = [each for each in read if split_key(each.ref)[0] != PARAM]
        values, argument = self._both(match), self._both(arguments[0]) if len(arguments) == 1 else None
        if values is None or argument is None or argument[0].shape == values[0].shape or self._left <= 0:
            return ""
        self._left -= 1
        params = [self._both(each) for each in read if split_key(each.ref)[0] == PARAM]
        known = [each for each in params if each is not None]
        if len(known) < len(params):
            return ""
        name = printable(split_key(arguments[0].ref)[1])
        with np.errstate(all="ignore"):  # it may be no such layer at all
            return _of_reader(values, argument, known, name) if known else _of_value(values, argument, name)

    def have_steps(self, match: Match) -> bool:
        """Returns whether a program has an entry for what one of its layers reads, and the other one has none for it.

        Args:
            match: The pair of what the layers compute.
        """
        return any(
            each in known and split_key(each)[0] == ACTIVATION and source.resolve(each) not in paired
            for (source, sources, known, paired), key in zip(self._sides, (match.ref, match.cand), strict=True)
            for each in sources.get(source.resolve(key), ())
        )

    def _both(self, match: Match) -> _Both | None:
        one, other = self._ref.tensor(match.ref), self._cand.made(match.recipe)
        return None if one is None or other is None or one.shape != other.shape else (one, other)


def _of_value(values: _Both, argument: _Both, name: str) -> str:
    """Returns which reductions of an argument values are, in words; "" where they are no others."""
    found = [
        next((own.words for own, _ in recognised(read, value)), "")
        for read, value in zip(argument, values, strict=True)
    ]
    own, its = found
    return f"is the {its} of `{name}`, and in the reference the {own}" if own and its and own != its else ""


def _of_reader(values: _Both, argument: _Both, params: Sequence[_Both], name: str) -> str:
    """Returns which reductions a layer reads, or how the norms of one differ, in words; "" where neither is known."""
    work = Work()
    shape, has_kernel = values[0].shape, any(own.ndim > 1 for own, _ in params)
    inputs = {size for own, _ in params if own.ndim == 2 for size in own.shape}
    if has_kernel and _is_layer_of(argument[0], values[0], [own for own, _ in params], work):
        return ""  # the reference's layer reads the argument as it is
    known = [*zip(*params, strict=True)]

    def found(at: int, first: str = "") -> _Reduced | None:
        read = _read(argument[at], shape, name, inputs, functions_too=has_kernel, first=first)
        return next((each for each in read if _is_layer_of(each.value, values[at], known[at], work)), None)

    one = found(0)
    if one is None:
        return ""
    other = found(1, one.function)
    if other is not None and one.function != other.function:  # one function in both programs is likelier
        one = found(0, other.function) or one
    if other is None:
        reads = _read(argument[1], shape, name, inputs, functions_too=has_kernel, first=one.function)
        scaled = (_scaled(each, values[1], known[1], work) for each in reads if each.words == one.words)
        return next((f"reads {words}, and the reference the {one.words}" for words in filter(None, scaled)), "")
    if one.words != other.words:
        return f"reads the {other.words}, and the reference the {one.words}"
    return "" if has_kernel else norm_difference(values, [(one.value, other.value), *params])


def _read(
    argument: Array, shape: tuple[int, ...], name: str, inputs: Collection[int], *, functions_too: bool, first: str
) -> Iterator[_Reduced]:
    """Yields reductions of an argument, or of a function of it, that a layer may read whose output has a shape.

    A dense layer with one of some numbers of inputs may read a pooled image that is flattened. Those of the function
    that is to be tried first come first: the maximum of what a function makes may be that of its argument, too.
    """
    functions = {"": np.copy, **(ELEMENTWISE if functions_too and argument.size <= _MOST_ARGUMENTS else {})}
    for words in sorted(functions, key=lambda each: each != first):
        value, of = functions[words](argument), f"the {words} of `{name}`" if words else f"`{name}`"

        def reduced(how: str, read: Array, of: str = of, words: str = words) -> _Reduced:
            return _Reduced(f"{how} of {of}", words, read)

        for axes in itertools.combinations(range(1, value.ndim), max(0, value.ndim - len(shape))):
            if axes:
                yield from (reduced(f"{each} over the axes {[*axes]}", read) for each, read in reductions(value, axes))
        if value.ndim == len(shape) > 2:
            for channel in (1, value.ndim - 1):
                pooled = tuple(value.shape[axis] if axis == channel else size for axis, size in enumerate(shape))
                yield from (reduced(f"{each} of windows", read) for each, read in windows_of(value, pooled))
        for pooled in _pooled(value.shape, inputs) if value.ndim > len(shape) == 2 else ():
            yield from (reduced(f"{each} of windows", read) for each, read in windows_of(value, pooled))


def _pooled(shape: tuple[int, ...], inputs: Collection[int]) -> Iterator[tuple[int, ...]]:
    """Yields the shapes of images whose windows are pooled so that each is one of some numbers of elements."""
    for channel in dict.fromkeys((1, len(shape) - 1)):
        space = [size for axis, size in enumerate(shape) if axis not in (0, channel)]
        for width in range(2, min(space) + 1):
            pooled = (size if axis in (0, channel) else size // width for axis, size in enumerate(shape))
            if math.prod((found := (*pooled,))[1:]) in inputs:
                yield found


def _scaled(read: _Reduced, value: Array, params: Sequence[Array], work: Work) -> str | None:
    """Returns what a layer with a kernel makes of a reduction before it multiplies that, in words; None for nothing."""
    kernels, vectors = ([each for each in params if (each.ndim > 1) is is_kernel] for is_kernel in (True, False))
    argument = f"the {read.words}", read.value
    return scaled_read(argument, kernels[0], value, vectors, work) if len(kernels) == 1 else None


def _is_layer_of(read: Array, value: Array, params: Sequence[Array], work: Work) -> bool:
    """Returns whether a value is that of a norm, or of a layer with a kernel, that reads another value."""
    kernels, vectors = ([each for each in params if (each.ndim > 1) is is_kernel] for is_kernel in (True, False))
    if len(kernels) == 1:
        return any(kernel_uses(read, kernels[0], value, vectors, work=work))
    return not kernels and is_norm([read, *params], value)
