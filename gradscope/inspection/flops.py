"""`flops_of` returns the floating-point operations of one equation that runs no other equations.

By default an equation costs one operation per element of its floating-point outputs: an `exp` counts as much as an
addition. Moving data and integer arithmetic cost nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import starmap
from typing import Any, Final, NamedTuple

import jax.numpy as jnp
import numpy as np

from gradscope.primitive_groups import COLLECTIVES
from gradscope.tracing.jaxpr.jaxcompat import Equation

#: Primitives that only move, view, convert or create values.
MOVEMENT: Final = frozenset(
    {"broadcast_in_dim", "reshape", "transpose", "squeeze", "expand_dims", "slice", "dynamic_slice",
     "dynamic_update_slice", "gather", "scatter", "concatenate", "pad", "rev", "copy", "copy_p", "convert_element_type",
     "bitcast_convert_type", "reduce_precision", "select_n", "iota", "stop_gradient", "split", "real", "imag",
     "complex", "name", "sharding_constraint", "optimization_barrier", "device_put", "empty", "create_token",
     "random_bits", "pure_callback", "io_callback", "debug_callback", "debug_print", "layout_constraint",
     "reshard", "mesh_cast", "broadcast", "relayout", "with_memory_space_constraint"}
)  # fmt: skip

#: Primitives about the devices of a mesh, which move values between them or none.
ABOUT_DEVICES: Final = COLLECTIVES | {
    "pvary", "pcast", "pbroadcast", "pbroadcast_dynamic", "reduced_vary_cast", "vary_unreduced_cast", "axis_index"
}  # fmt: skip


def has_own_cost(equation: Equation) -> bool:
    """Returns whether an equation's cost follows from its primitive, whatever jaxprs are in its parameters."""
    name = equation.primitive.name
    return name in _RULES or name in MOVEMENT or name in ABOUT_DEVICES


def flops_of(equation: Equation) -> int:
    """Returns the floating-point operations of one equation.

    Args:
        equation: An equation that runs no jaxprs, or one with `has_own_cost`.
    """
    name = equation.primitive.name
    if name in MOVEMENT or name in ABOUT_DEVICES:
        return 0
    if not any(_is_inexact(variable) for variable in (*equation.invars, *equation.outvars)):
        return 0
    return _RULES.get(name, _per_output)(equation)


def _per_output(equation: Equation) -> int:
    return sum(_size(variable) for variable in equation.outvars if _is_inexact(variable))


def _dot_general(equation: Equation) -> int:
    left = equation.invars[0].aval.shape
    (contracted, _), _ = equation.params["dimension_numbers"]
    return 2 * _size(equation.outvars[0]) * math.prod(left[axis] for axis in contracted)


def _ragged_dot(equation: Equation) -> int:
    """Returns the cost of a product in which each row of the left operand meets one group of the right operand."""
    left, right = equation.invars[0].aval.shape, equation.invars[1].aval.shape
    return 2 * math.prod(left) * right[-1]


def _convolution(equation: Equation) -> int:
    """Returns two operations per multiplication of an input element with a kernel element, without padding and holes.

    References:
        `HloCostAnalysis::HandleConvolution` of XLA counts in the same way.
    """
    image, kernel, out = (variable.aval.shape for variable in (*equation.invars, equation.outvars[0]))
    params = equation.params
    of_image, of_kernel, of_out = params["dimension_numbers"]
    spatial = zip(of_image[2:], of_kernel[2:], of_out[2:], _windows(params), strict=True)
    pairs = math.prod(window.pairs(image[i], kernel[k], out[o]) for i, k, o, window in spatial)
    examples = image[of_image[0]] // params["batch_group_count"]
    return 2 * pairs * examples * kernel[of_kernel[0]] * kernel[of_kernel[1]]


class _Window(NamedTuple):
    """_Window stores how a kernel moves over an image along one dimension."""

    stride: int
    before: int
    image_dilation: int
    kernel_dilation: int

    def pairs(self, image: int, kernel: int, out: int) -> int:
        """Returns how often a kernel element meets an image element, without padding and holes."""
        starts = np.arange(out)[:, None] * self.stride - self.before
        at = starts + np.arange(kernel)[None, :] * self.kernel_dilation
        inside = (at >= 0) & (at <= (image - 1) * self.image_dilation)
        return int((inside & (at % self.image_dilation == 0)).sum())


def _windows(params: Mapping[str, Any]) -> list[_Window]:
    before = [low for low, _ in params["padding"]]
    along = zip(params["window_strides"], before, params["lhs_dilation"], params["rhs_dilation"], strict=True)
    return list(starmap(_Window, along))


def _reduction(equation: Equation) -> int:
    return _size(equation.invars[0]) - _size(equation.outvars[0])


def _reduce_window(equation: Equation) -> int:
    return _size(equation.outvars[0]) * (math.prod(equation.params["window_dimensions"]) - 1)


def _select_and_scatter(equation: Equation) -> int:
    """Returns the comparisons of all elements of each window but one, and one addition per window."""
    return _size(equation.invars[0]) * math.prod(equation.params["window_dimensions"])


def _per_update(equation: Equation) -> int:
    return _size(equation.invars[2])


def _integer_power(equation: Equation) -> int:
    """Returns the multiplications of a power by repeated squaring."""
    exponent = abs(equation.params["y"])
    products = max(exponent.bit_length() - 1 + exponent.bit_count() - 1, 0) + (equation.params["y"] < 0)
    return products * _size(equation.outvars[0])


def _sort(equation: Equation) -> int:
    first = equation.invars[0]
    length = first.aval.shape[equation.params["dimension"]]
    return _size(first) * max(length - 1, 0).bit_length()


def _cholesky(equation: Equation) -> int:
    *batch, rows, _ = equation.invars[0].aval.shape
    return math.prod(batch) * rows**3 // 3


def _lu(equation: Equation) -> int:
    *batch, rows, columns = equation.invars[0].aval.shape
    least = min(rows, columns)
    return math.prod(batch) * least**2 * (3 * max(rows, columns) - least) // 3


def _triangular_solve(equation: Equation) -> int:
    return _size(equation.invars[1]) * equation.invars[0].aval.shape[-1]


def _fft(equation: Equation) -> int:
    """Returns the usual estimate of a fast Fourier transform, 5 n log2 n."""
    length = math.prod(equation.params["fft_lengths"])
    return round(5 * _size(equation.outvars[0]) * math.log2(max(length, 1)))


_RULES: Final[Mapping[str, Callable[[Equation], int]]] = {
    "dot_general": _dot_general,
    "ragged_dot": _ragged_dot,
    "ragged_dot_general": _ragged_dot,
    "conv_general_dilated": _convolution,
    **dict.fromkeys(("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce"), _reduction),
    **dict.fromkeys(("argmax", "argmin"), _reduction),
    **dict.fromkeys(("reduce_window_sum", "reduce_window_max", "reduce_window_min", "reduce_window"), _reduce_window),
    **dict.fromkeys(("select_and_scatter_add", "select_and_gather_add"), _select_and_scatter),
    **dict.fromkeys(("scatter-add", "scatter_add", "scatter-mul", "scatter_mul"), _per_update),
    **dict.fromkeys(("scatter-min", "scatter_min", "scatter-max", "scatter_max"), _per_update),
    "integer_pow": _integer_power,
    "sort": _sort,
    "cholesky": _cholesky,
    "lu": _lu,
    "triangular_solve": _triangular_solve,
    "fft": _fft,
}


def _size(atom: Any) -> int:
    shape: Sequence[int] = atom.aval.shape
    return math.prod(shape)


def _is_inexact(atom: Any) -> bool:
    return hasattr(atom.aval, "dtype") and bool(jnp.issubdtype(atom.aval.dtype, jnp.inexact))
