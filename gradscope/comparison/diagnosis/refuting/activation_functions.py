"""The functions of single elements that networks apply between layers, such as activation functions, by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Final, TypeAlias

import numpy as np

from gradscope.arrays.blocks import Array

#: How many places for each unit there are at which erf is computed.
_ERF_STEPS: Final = 256

#: A function of single elements.
Elementwise: TypeAlias = Callable[[Array], Array]


def _sigmoid(x: Array) -> Array:
    return 0.5 * (1 + np.tanh(0.5 * x))


def _erf(x: Array) -> Array:
    """Returns the error function by its Taylor series of third order at the nearest of some places.

    NumPy has no such function, and Python's takes numbers one by one. With e = 2/sqrt(pi) exp(-x^2), the derivatives of
    erf are e, -2xe and (4x^2 - 2)e; a place is at most 1/512 away, which makes an absolute error below 1e-11.
    """
    places, values = _erf_places()
    near = np.rint((np.clip(x, places[0], places[-1]) - places[0]) * _ERF_STEPS)
    at = np.where(np.isnan(near), 0, near).astype(np.int64)
    place = places[at]
    step = np.clip(x, places[0], places[-1]) - place
    slope = 2 / math.sqrt(math.pi) * np.exp(-np.square(place))
    return values[at] + slope * step * (1 - step * (place - step * (2 * np.square(place) - 1) / 3))


@cache
def _erf_places() -> tuple[Array, Array]:
    """Returns places from -6 to 6, behind which erf is one to the last digit, and its values there."""
    places = np.arange(-6 * _ERF_STEPS, 6 * _ERF_STEPS + 1) / _ERF_STEPS
    return places, np.array([math.erf(each) for each in places.tolist()])


def _selu(x: Array) -> Array:
    scale, alpha = 1.0507009873554805, 1.6732632423543772
    return scale * np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


#: The functions of single elements, by name.
ELEMENTWISE: Final[Mapping[str, Elementwise]] = MappingProxyType({
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
    "hard_sigmoid": lambda x: np.clip(x / 6 + 0.5, 0, 1),
    "hard_sigmoid of slope 0.2": lambda x: np.clip(0.2 * x + 0.5, 0, 1),
    "hard_swish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    "gelu by sigmoid": lambda x: x * _sigmoid(1.702 * x),
    "mish": lambda x: x * np.tanh(np.logaddexp(x, 0)),
    "selu": _selu,
    "squared relu": lambda x: np.square(np.maximum(x, 0)),
    "square": np.square,
    "sin": np.sin,
    "softsign": lambda x: x / (1 + np.abs(x)),
})  # fmt: skip


#: The derivatives of the functions that a layer may apply to its product, by its output.
DERIVATIVES: Final[Mapping[str, Elementwise]] = MappingProxyType({
    "": np.ones_like,
    "tanh": lambda y: 1 - y * y,
    "sigmoid": lambda y: y * (1 - y),
    "relu": lambda y: (y > 0).astype(y.dtype),
})  # fmt: skip


#: Where the functions that do not change with their argument everywhere do not, by name.
FLAT: Final[Mapping[str, Elementwise]] = MappingProxyType({
    "relu": lambda x: x < 0,
    "relu6": lambda x: (x < 0) | (x > 6),
    "squared relu": lambda x: x < 0,
    "hard_swish": lambda x: x < -3,
    "hard_sigmoid": lambda x: np.abs(x) > 3,
    "hard_sigmoid of slope 0.2": lambda x: np.abs(x) > 2.5,
})  # fmt: skip
