"""Saturation: how far the result of a bounded function is at its limits, reduced inside the compiled program.

Two numbers leave the program in place of the result, whatever its size: plain reductions, which the compiler fuses with
what computes the result. Nothing depends on them, and no gradient is observed.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import jax.numpy as jnp
import numpy as np

from gradscope.instrument.taps import Observer
from gradscope.stats.units import LIMITS, MARGIN, concentration
from gradscope.tracing.lookup.bounded_functions import BoundedFunction

_PRIMITIVES: Final = {"sigmoid": "logistic", "tanh": "tanh", "erf": "erf"}


def observer_of(bounded: BoundedFunction) -> Observer:
    """Returns the observer of a bounded function's result; `saturated` reads what it returns."""
    if bounded.function == "softmax":
        return partial(_of_shares, bounded.entries)
    return partial(_of_elements, *LIMITS[_PRIMITIVES[bounded.function]])


def saturated(bounded: BoundedFunction, numbers: np.ndarray) -> float:
    """Returns how far a function is at its limits, from the two numbers that its observer returned: 0 to 1.

    It is the share of elements at a limit, or the concentration of a softmax.
    """
    first, second = numbers.tolist()
    return concentration(bounded.entries, first, second) if bounded.function == "softmax" else first


def _of_elements(low: float, high: float, value: Any, *, passing: bool = False) -> Any:  # noqa: ARG001 - no cotangent
    """Returns the share of elements within the margin of a limit, and 0."""
    at_limit = (value < low + MARGIN) | (value > high - MARGIN)
    return jnp.stack([_mean(at_limit), jnp.float32(0)])


def _of_shares(entries: int, value: Any, *, passing: bool = False) -> Any:  # noqa: ARG001 - no cotangent
    """Returns the mean over rows of the sum of squares, and the share of zeros."""
    wide = value.astype(jnp.float32)
    return jnp.stack([_mean(wide * wide) * entries, _mean(wide == 0)])


def _mean(value: Any) -> Any:
    return value.astype(jnp.float32).mean() if value.size else jnp.float32(0)
