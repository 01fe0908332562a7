"""A step's record is on the device until its numbers are read."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradscope.capturing.in_steps.seen import Seen


class Recorded(NamedTuple):
    """A `Recorded` has what is recorded of one step, on the device.

    Attributes:
        vectors: Core statistics of each tensor, in the order of their keys, [tensors, WIDTH], or longer where
            histograms were observed, too.
        cosines: Cosine of each gradient with the one of the last recorded step, by parameter.
        numbers: The numbers of the step, by the names of `step_seen.NUMBERS`.
        unchanged: Whether the step left a parameter as it was, by parameter, as far as that is known.
        directions: Cosine of each update with the gradient, by parameter, as far as updates are known.
    """

    vectors: Any
    cosines: dict[str, Any]
    numbers: dict[str, Any]
    unchanged: dict[str, Any]
    directions: dict[str, Any]


def outline_of(seen: Seen) -> Seen:
    """Returns observations with shapes in place of arrays; from those of several steps, the shapes of one."""
    axes = jnp.ndim(seen.observed.loss)

    return jax.tree_util.tree_map(lambda leaf: jax.ShapeDtypeStruct(jnp.shape(leaf)[axes:], leaf.dtype), seen)
