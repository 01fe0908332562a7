"""Saturation is how far the result of a bounded function is at its limits, reduced inside the compiled program.

Two numbers leave the program in place of the result, whatever its size: plain reductions, which the compiler fuses with
what computes the result. Nothing depends on them, and no gradient is observed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from gradscope.instrument.taps import Observer
from gradscope.stats.units import LIMITS, MARGIN, concentration
from gradscope.tracing.lookup.functions.bounded_functions import BoundedFunction
from gradscope.tracing.lookup.functions.softmax_neighbours import NoisySum

#: Scores below are masked.
_LOWEST: Final = -9000.0
#: Before a query, at it, and behind it.
_PLACES: Final = 3
_PRIMITIVES: Final = {"sigmoid": "logistic", "tanh": "tanh", "erf": "erf"}


def observer_of(bounded: BoundedFunction) -> Observer:
    """Returns the observer of a bounded function's result; `saturated` reads what it returns."""
    if bounded.function in ("softmax", "attention"):
        return partial(_of_shares, bounded.entries, bounded.positions)
    if bounded.limits is not None:
        return partial(_of_clipped, bounded.limits)
    if bounded.mask is not None:
        return partial(_of_dropped, bounded.mask.drops)
    return partial(_of_elements, *LIMITS[_PRIMITIVES[bounded.function]])


def saturated(bounded: BoundedFunction, numbers: np.ndarray) -> float:
    """Returns how far a function is at its limits, from the two numbers that its observer returned: 0 to 1.

    It is the share of elements at a limit, or that a mask drops, or the concentration of a softmax.
    """
    first, second, *_ = numbers.tolist()
    return concentration(bounded.entries, first, second) if bounded.function == "softmax" else first


def reads(bounded: BoundedFunction, numbers: np.ndarray) -> tuple[float, ...]:
    """Returns the parts of attention's shares that are not zero of keys before their query, at it, and behind it."""
    return () if bounded.positions is None else tuple(numbers.tolist()[-_PLACES:])


def observer_of_noise(noisy: NoisySum) -> Observer:
    """Returns the observer of a sum's operands; `noise_share` reads what it returns."""
    return partial(_spreads, noisy.noise, noisy.axis)


def noise_share(numbers: np.ndarray) -> float:
    """Returns the share of a sum's variance that is the noise's, from the two numbers of its observer: 0 to 1."""
    noise, rest = numbers.tolist()
    return noise / (noise + rest) if noise > 0 else 0.0


def _spreads(noise: int, axis: int | None, value: Sequence[Any]) -> Any:
    """Returns the variances of the noise and of the other operand, over the scores of a row that no mask lowers."""
    return jnp.stack([_variance(value[at], axis) for at in (noise, 1 - noise)])


def _variance(value: Any, axis: int | None) -> Any:
    wide = value.astype(jnp.float32)
    kept = wide > _LOWEST
    count = jnp.maximum(kept.astype(jnp.float32).sum(axis, keepdims=True), 1)
    mean = jnp.where(kept, wide, 0).sum(axis, keepdims=True) / count
    return _mean(jnp.where(kept, jnp.square(wide - mean), 0).sum(axis, keepdims=True) / count)


def _of_elements(low: float, high: float, value: Any) -> Any:
    """Returns the share of elements within the margin of a limit, and 0."""
    at_limit = (value < low + MARGIN) | (value > high - MARGIN)
    return jnp.stack([_mean(at_limit), jnp.float32(0)])


def _of_clipped(limits: tuple[float, float], value: Any) -> Any:
    """Returns the share of elements at a limit, as the value's type rounds it, and 0."""
    low, high = (jnp.asarray(each, value.dtype) for each in limits)
    return jnp.stack([_mean((value <= low) | (value >= high)), jnp.float32(0)])


def _of_dropped(drops: bool, value: Any) -> Any:
    """Returns the share of elements of a mask that drop what it is applied to, and 0."""
    return jnp.stack([_mean(value == drops), jnp.float32(0)])


def _of_positions(positions: tuple[int, int], value: Any) -> Any:
    """Returns the parts of the shares that are not zero of keys before their query, at it, and behind it.

    A row of equal shares counts for nothing: it is what a softmax makes of a query all of whose keys are masked.
    """
    queries, keys = (jax.lax.broadcasted_iota(jnp.int32, value.shape, axis) for axis in positions)
    varies = value.max(positions[1], keepdims=True) > value.min(positions[1], keepdims=True)
    read = (value != 0) & varies
    of_all = value.size or 1
    return jnp.stack([(read & each).astype(jnp.float32).sum() / of_all
                      for each in (keys < queries, keys == queries, keys > queries)])  # fmt: skip


def _of_shares(entries: int, positions: tuple[int, int] | None, value: Any) -> Any:
    """Returns the mean over rows of the sum of squares, the share of zeros, and of attention which keys are read."""
    wide = value.astype(jnp.float32)
    own = jnp.stack([_mean(wide * wide) * entries, _mean(wide == 0)])
    return own if positions is None else jnp.concatenate([own, _of_positions(positions, wide)])


def _mean(value: Any) -> Any:
    return value.astype(jnp.float32).mean() if value.size else jnp.float32(0)
