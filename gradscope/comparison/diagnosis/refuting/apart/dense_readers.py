"""Dense readers are the dense layers that read a value; the gradients of their kernels show what they make of it first.

The kernel of a dense layer that reads `x` has the gradient `x^T g`, and that of no other value, for a gradient `g` that
arrives at the output of the layer, but for a factor.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.diagnosis.refuting.activation_functions import DERIVATIVES
from gradscope.comparison.layout.recipes import Recipe
from gradscope.dump.interfaces import DumpSource
from gradscope.naming import ACTIVATION, ACTIVATION_GRAD, PARAM_GRAD, key_of, split_key

#: The sine of the angle up to which two tensors are multiples of each other.
_PARALLEL: Final = 1e-3


def dense_readers(source: DumpSource, key: str) -> Iterator[tuple[Array, list[str]]]:
    """Yields the gradients at the outputs of layers that read a value, with those of kernels that fit a dense layer."""
    # A number, such as a loss, is read by none.
    *rows, features = source.entry(key).shape or (0,)
    name, known = split_key(key)[1], frozenset(source.keys())
    for layer in (each for each in source.manifest.layers if name in each.inputs or key in each.sources):
        gradients = [key_of(PARAM_GRAD, each) for each in layer.params]
        shapes = {each: source.entry(each).shape for each in gradients if each in known and source.has_tensor(each)}
        for output in layer.outputs:
            arrives_at = key_of(ACTIVATION, output)
            *others, columns = (source.entry(arrives_at).shape if arrives_at in known else ()) or (0,)
            fitting = [each for each, shape in shapes.items() if shape in ((features, columns), (columns, features))]
            if fitting and math.prod(others) == math.prod(rows):
                arriving = arriving_at(source, arrives_at, None)
                if arriving is not None and source.has_tensor(arrives_at):
                    value = source.array(arrives_at).astype(np.float64)
                    yield from ((arriving * derivative(value), fitting) for derivative in DERIVATIVES.values())


def least_angle(expected: Array, kernels: Iterable[Array]) -> float:
    """Returns by how much the gradients of kernels, stored either way round, are no multiple of the expected one."""
    oriented = (each for kernel in kernels for each in (kernel, kernel.T))
    return min((_angle(expected, each) for each in oriented if each.shape == expected.shape), default=1.0)


def _angle(one: Array, other: Array) -> float:
    """Returns the sine of the angle between two tensors; 1 where one of them is zero."""
    size = float(np.linalg.norm(one) * np.linalg.norm(other))
    return math.sqrt(max(0.0, 1 - (float(np.vdot(one, other)) / size) ** 2)) if size else 1.0


def arriving_at(source: DumpSource, key: str, recipe: Recipe | None) -> Array | None:
    """Returns the gradient that arrives at a value, as a recipe of the value makes it; None where there is none."""
    keys = [key_of(ACTIVATION_GRAD, split_key(each)[1]) for each in ((key,) if recipe is None else recipe.keys)]
    known = frozenset(source.keys())
    if not all(each in known and source.has_tensor(each) for each in keys):
        return None
    arrays = [source.array(each) for each in keys]
    return (arrays[0] if recipe is None else recipe.made_of(arrays)).astype(np.float64)


def read_multiple(source: DumpSource, key: str) -> float | None:
    """Returns by what a value is multiplied before a dense layer reads it, or in that before its output; else None."""
    value = source.array(key).astype(np.float64)
    for arriving, gradients in dense_readers(source, key):
        made = value.reshape(-1, value.shape[-1]).T @ arriving.reshape(-1, arriving.shape[-1])
        kernels = [source.array(each).astype(np.float64) for each in gradients]
        for each in (turned for kernel in kernels for turned in (kernel, kernel.T) if turned.shape == made.shape):
            if np.any(made) and _angle(made, each) <= _PARALLEL:
                return float(np.vdot(made, each) / np.vdot(made, made))
    return None
