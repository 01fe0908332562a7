"""A softmax row with a single entry that is not zero weighs it 1 whatever its score, which has no gradient.

Either a mask leaves one entry in each row, or the scores are so far apart that all others round to zero.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import jax.numpy as jnp
import numpy as np

from gradscope.stats.units import MARGIN
from gradscope.tracing.dataflow.forward import FrameVariable
from gradscope.tracing.dataflow.gradient_barriers import location_of
from gradscope.tracing.jaxpr.frames import OPERAND

#: The share of weights at their limits above which a softmax counts as saturated.
_AT_LIMITS: Final = 0.9


def single_entries(scores: Any, where: str) -> str:
    """Returns why no score of a softmax has a gradient; "" where several entries of some row count.

    Args:
        scores: What the exponential function receives, with the rows along the last axis.
        where: The location of the exponential function.
    """
    dtype = np.asarray(scores).dtype
    if not np.ndim(scores) or not jnp.issubdtype(dtype, jnp.floating):
        return ""
    wide = np.asarray(scores).astype(np.float64)
    weights = np.exp(wide - wide.max(axis=-1, keepdims=True)).astype(dtype)
    if wide.shape[-1] == 1 or not np.all(np.count_nonzero(weights, axis=-1) == 1):
        return ""
    # A mask is so large that nothing of a score is left in its sum with it.
    masked = wide < -1 / float(jnp.finfo(dtype).eps)
    if np.all(masked | (weights != 0)):
        return f"masked: in each row the mask leaves one entry, whose weight is 1 whatever its score, in {where}"
    return f"underflow: in each row all entries but one are so low that their weight rounds to zero, in {where}"


def single_weights(numerators: FrameVariable, known: Callable[[FrameVariable], Any]) -> str:
    """Returns why no score of a softmax has a gradient; "" where several entries of some row count.

    Args:
        numerators: What the exponential function returns; for any other value, "" is returned.
        known: Returns what a value was in the run; None where that is not known.
    """
    frame, atom = numerators
    number, _ = frame.definitions[atom]
    if number == OPERAND or frame.jaxpr.eqns[number].primitive.name != "exp":
        return ""
    scores = known(FrameVariable(frame, frame.jaxpr.eqns[number].invars[0]))
    return "" if scores is None else single_entries(scores, location_of(frame, number))


def is_saturated(weights: np.ndarray) -> bool:
    """Returns whether almost all weights are at one of the limits 0 and 1, and some at each."""
    if np.iscomplexobj(weights) or not weights.size or not np.all((weights >= 0) & (weights <= 1)):
        return False
    high, low = np.mean(weights >= 1 - MARGIN), np.mean(weights <= MARGIN)
    return bool(high > 0 and low > 0 and high + low > _AT_LIMITS)
