"""`function_between` finds the function that one value of a pair is of the other, such as an activation function.

One program may have an activation function inside of a layer and the other behind it. A pair that only its place
suggests then differs, whatever else is right. Where the values show the function, the pair is either that, or one
program leaves the function out. The gradients of the program that has the argument decide, where they can
(`is_applied`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, TypeAlias

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.layout.recipes import Recipe
from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.dump.interfaces import DumpSource
from gradscope.naming import ACTIVATION, ACTIVATION_GRAD, PARAM_GRAD, key_of, printable, split_key

#: The largest number of elements that are compared, and the number that rules a function of single elements out.
_MOST_ELEMENTS: Final = 1 << 22
_SAMPLE: Final = 256

#: The relative error up to which gradients agree with a use of a function.
_AGREE: Final = 1e-3

_Elementwise: TypeAlias = Callable[[Array], Array]


def _sigmoid(x: Array) -> Array:
    return 0.5 * (1 + np.tanh(0.5 * x))


def _erf(x: Array) -> Array:
    return np.array([math.erf(each) for each in x.flat]).reshape(x.shape)


#: The functions of single elements, by name.
_ELEMENTWISE: Final[Mapping[str, _Elementwise]] = MappingProxyType({
    "relu": lambda x: np.maximum(x, 0),
    "sigmoid": _sigmoid,
    "tanh": np.tanh,
    "silu": lambda x: x * _sigmoid(x),
    "gelu by tanh": lambda x: x * _sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)),
    "gelu by erf": lambda x: 0.5 * x * (1 + _erf(x / math.sqrt(2))),
    "softplus": lambda x: np.logaddexp(x, 0),
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "relu6": lambda x: np.clip(x, 0, 6),
    "leaky_relu of slope 0.01": lambda x: np.where(x > 0, x, 0.01 * x),
    "leaky_relu of slope 0.2": lambda x: np.where(x > 0, x, 0.2 * x),
})  # fmt: skip


#: Where the functions that do not change with their argument everywhere do not, by name.
_FLAT: Final[Mapping[str, _Elementwise]] = MappingProxyType({
    "relu": lambda x: x < 0,
    "relu6": lambda x: (x < 0) | (x > 6),
})  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionBetween:
    """FunctionBetween stores which function one value of a pair is of the other.

    Attributes:
        name: The function.
        axis: The axis of its rows in the reference's layout; None for a function of single elements.
        of_ref: Whether the candidate's value is the function of the reference's, and not the other way round.
    """

    name: str
    axis: int | None
    of_ref: bool

    def stages(self, match: Match) -> Iterator[tuple[str, str]]:
        """Yields the keys of the values of a pair and of their gradients, with what each is, in words.

        Args:
            match: The pair.
        """
        argument, value = (match.ref, match.cand) if self.of_ref else (match.cand, match.ref)
        words = {
            value: f"the {self.name} of `{printable(split_key(argument)[1])}`",
            argument: f"what `{printable(split_key(value)[1])}` is the {self.name} of",
        }
        for key, what in words.items():
            yield key, what
            yield key_of(ACTIVATION_GRAD, split_key(key)[1]), f"its value is {what}"


def function_between(dumps: Dumps, match: Match, tolerance: float) -> FunctionBetween | None:
    """Returns the function that one value of a pair is of the other; None where it is none, or is not known.

    Args:
        dumps: The dumps of the pair.
        match: The pair.
        tolerance: The largest relative error.
    """
    values = _values(dumps, match)
    if values is None:
        return None
    for of_ref, argument, value in ((False, values[1], values[0]), (True, values[0], values[1])):
        for name, function in _ELEMENTWISE.items():
            if _is_function(function, argument, value, tolerance):
                return FunctionBetween(name=name, axis=None, of_ref=of_ref)
        for axis in reversed(range(value.ndim)):
            if (name := _function_of_rows(argument, value, axis, tolerance)) is not None:
                return FunctionBetween(name=name, axis=axis, of_ref=of_ref)
    return None


def is_applied(dumps: Dumps, match: Match, found: FunctionBetween) -> bool | None:
    """Returns whether the program that has the argument of a function applies it behind; None where nothing tells.

    A softmax does not change where a number is added to all of a row, and sends back gradients that add up to zero. A
    rectifier sends back zeros where its argument is negative. The kernel of a dense layer that reads the result has the
    gradient `f(x)^T g`, and that of no other `f`, for a gradient `g` that arrives at the output of the layer, but for a
    factor.

    Args:
        dumps: The dumps of the pair.
        match: The pair.
        found: The function that one value of the pair is of the other.
    """
    source, key = (dumps.ref, match.ref) if found.of_ref else (dumps.cand, match.cand)
    gradient = _gradient(source, key, None if found.of_ref else match.recipe)
    values = _values(dumps, match)
    if gradient is None or values is None or not np.any(gradient):
        return None
    if found.axis is not None:
        return bool(np.abs(gradient.sum(found.axis)).sum() <= _AGREE * np.abs(gradient).sum())
    if found.name in _FLAT:
        return not np.any(gradient[_FLAT[found.name](values[0 if found.of_ref else 1])])
    read = _read_by_dense(source, key)
    return None if read is None else read == found.name


def _values(dumps: Dumps, match: Match) -> tuple[Array, Array] | None:
    """Returns both values in the reference's layout; None where there are none that can be compared, or too many."""
    entry = dumps.ref.entry(match.ref)
    if not 2 <= math.prod(entry.shape) <= _MOST_ELEMENTS:
        return None
    if not (dumps.ref.has_tensor(match.ref) and all(map(dumps.cand.has_tensor, match.recipe.keys))):
        return None
    one, other = dumps.ref.array(match.ref), match.recipe.array(dumps.cand)
    if one.shape != other.shape or not (np.isrealobj(one) and np.isrealobj(other)):
        return None
    one, other = one.astype(np.float64), other.astype(np.float64)
    return (one, other) if np.isfinite(one).all() and np.isfinite(other).all() else None


def _close(found: Array, value: Array, tolerance: float) -> bool:
    return bool(np.linalg.norm(found - value) <= tolerance * np.linalg.norm(value))


def _is_function(function: _Elementwise, argument: Array, value: Array, tolerance: float) -> bool:
    few = slice(None, None, -(-argument.size // _SAMPLE))
    sample, wanted = argument.reshape(-1)[few], value.reshape(-1)[few]
    # The sample is held to the scale of all elements, and not so strictly that its own error would rule a function out.
    scale = math.sqrt(len(sample) / value.size) * float(np.linalg.norm(value))
    if np.linalg.norm(function(sample) - wanted) > 10 * tolerance * scale:
        return False
    return _close(function(argument), value, tolerance)


def _function_of_rows(argument: Array, value: Array, axis: int, tolerance: float) -> str | None:
    """Returns whether each row of a value is the softmax of the argument's row, or the logarithm of that."""
    if value.shape[axis] < 2:
        return None
    shifted = argument - argument.max(axis, keepdims=True)
    logarithm = shifted - np.log(np.exp(shifted).sum(axis, keepdims=True))
    if _close(np.exp(logarithm), value, tolerance):
        return "softmax"
    return "log_softmax" if _close(logarithm, value, tolerance) else None


def _gradient(source: DumpSource, key: str, recipe: Recipe | None) -> Array | None:
    """Returns the gradient that arrives at a value, as a recipe of the value makes it; None where there is none."""
    keys = [key_of(ACTIVATION_GRAD, split_key(each)[1]) for each in ((key,) if recipe is None else recipe.keys)]
    known = frozenset(source.keys())
    if not all(each in known and source.has_tensor(each) for each in keys):
        return None
    arrays = [source.array(each) for each in keys]
    return (arrays[0] if recipe is None else recipe.made_of(arrays)).astype(np.float64)


def _read_by_dense(source: DumpSource, key: str) -> str | None:
    """Returns the function of a value that a dense layer reads, "" for the value; None where none reads any."""
    value = source.array(key).astype(np.float64)
    rows, name = value.reshape(-1, value.shape[-1]), split_key(key)[1]
    known = frozenset(source.keys())
    read = {"": rows} | {each: function(rows) for each, function in _ELEMENTWISE.items()}
    readers = (layer for layer in source.manifest.layers if name in layer.inputs or key in layer.sources)
    for layer in readers:
        gradients = [key_of(PARAM_GRAD, each) for each in layer.params]
        kernels = [source.array(each) for each in gradients if each in known and source.has_tensor(each)]
        for arriving in (_gradient(source, key_of(ACTIVATION, output), None) for output in layer.outputs):
            if arriving is None or arriving.ndim < 2 or arriving.size // arriving.shape[-1] != len(rows):
                continue
            columns = arriving.reshape(len(rows), -1)
            errors = {each: _least_error(argument.T @ columns, kernels) for each, argument in read.items()}
            best = min(errors, key=errors.__getitem__)
            if errors[best] <= _AGREE:
                return best
    return None


def _least_error(wanted: Array, kernels: Iterable[Array]) -> float:
    """Returns by how much the gradients of kernels, stored either way round, are no multiple of the wanted one."""
    oriented = (each.astype(np.float64) for kernel in kernels for each in (kernel, kernel.T))
    return min((_angle(wanted, each) for each in oriented if each.shape == wanted.shape), default=1.0)


def _angle(one: Array, other: Array) -> float:
    """Returns the sine of the angle between two tensors; 1 where one of them is zero."""
    size = float(np.linalg.norm(one) * np.linalg.norm(other))
    return math.sqrt(max(0.0, 1 - (float(np.vdot(one, other)) / size) ** 2)) if size else 1.0
