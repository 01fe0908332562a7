"""`function_read` finds which function of a value a layer of its own program reads, by the gradient of the kernel.

The kernel of a dense layer that reads `f(x)` has the gradient `f(x)^T g`, and that of no other `f`, for a gradient `g`
that arrives at the output of the layer, but for a factor. Each tap of a convolution has a correlation of both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.diagnosis.refuting.activation_functions import ELEMENTWISE, Elementwise
from gradscope.comparison.diagnosis.refuting.apart.correlations import forms, gradient_error
from gradscope.comparison.diagnosis.refuting.apart.dense_readers import arriving_at, dense_readers, least_angle
from gradscope.dump.interfaces import DumpSource
from gradscope.naming import ACTIVATION, PARAM_GRAD, key_of, split_key

#: The relative error up to which the gradient of a kernel is that for a function.
_AGREE: Final = 1e-3

#: That beyond which it is clearly none for a function, whatever rounding does.
_CLEARLY_APART: Final = 5e-2

#: The most elements of a value that a convolution may read a function of.
_MOST_ELEMENTS: Final = 1 << 18

#: What a layer may read of a value, by name: "" for the value.
_FUNCTIONS: Final[Mapping[str, Elementwise]] = MappingProxyType({"": np.copy, **ELEMENTWISE})


def function_read(source: DumpSource, key: str) -> str | None:
    """Returns the function of a value that a layer reads, "" for the value; None where none is known to read any.

    Args:
        source: The dump.
        key: The key of the value, which has a tensor.
    """
    for errors in (*_of_dense(source, key), *_of_convolutions(source, key)):
        best = min(errors, key=errors.__getitem__)
        if errors[best] <= _AGREE:
            return best
    return None


def reads_other_function(source: DumpSource, key: str) -> bool:
    """Returns whether what layers read of a value is neither the value nor any known function of it, as behind a mask.

    Args:
        source: The dump.
        key: The key of the value, which has a tensor.
    """
    least = [min(errors.values()) for errors in (*_of_dense(source, key), *_of_convolutions(source, key))]
    return min(least, default=0.0) > _CLEARLY_APART


def _of_dense(source: DumpSource, key: str) -> Iterator[dict[str, float]]:
    """Yields by how much the gradients of kernels of dense layers are none for each function of a value."""
    rows: Array | None = None
    for arriving, gradients in dense_readers(source, key):
        columns = arriving.reshape(-1, arriving.shape[-1])
        if rows is None:  # few values are read by a dense layer
            value = source.array(key).astype(np.float64)
            rows = value.reshape(-1, value.shape[-1])
        kernels = [source.array(each).astype(np.float64) for each in gradients]
        yield {name: least_angle(function(rows).T @ columns, kernels) for name, function in _FUNCTIONS.items()}


def _of_convolutions(source: DumpSource, key: str) -> Iterator[dict[str, float]]:
    """Yields by how much the gradients of kernels of convolutions are none for each function of a value."""
    entry, name, known = source.entry(key), split_key(key)[1], frozenset(source.keys())
    if len(entry.shape) < 3 or np.prod(entry.shape) > _MOST_ELEMENTS:
        return
    for layer in (each for each in source.manifest.layers if name in each.inputs or key in each.sources):
        gradients = [key_of(PARAM_GRAD, each) for each in layer.params]
        kernels = [each for each in gradients if each in known and len(source.entry(each).shape) == len(entry.shape)]
        outputs = [key_of(ACTIVATION, each) for each in layer.outputs if kernels]
        arriving = [each for each in (arriving_at(source, output, None) for output in outputs) if each is not None]
        for kernel in (source.array(each).astype(np.float64) for each in kernels if source.has_tensor(each)):
            value = source.array(key).astype(np.float64)
            for slope in arriving:
                for form in forms(kernel.shape, value.shape, slope.shape):
                    if form.matrix is None and np.any(slope):
                        yield {
                            name: gradient_error(form, function(value), slope, kernel, most=_AGREE)
                            for name, function in _FUNCTIONS.items()
                        }
