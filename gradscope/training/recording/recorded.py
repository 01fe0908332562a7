"""What is recorded of one step, on the device."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradscope.capturing.seen import Seen


class Recorded(NamedTuple):
    """What is recorded of one step, on the device.

    Attributes:
        vectors: Core statistics of each tensor, in the order of their keys, [tensors, WIDTH], or longer where
            histograms were observed, too.
        cosines: Cosine of each gradient with the one of the last recorded step, by parameter.
        numbers: The numbers of the step, by the names of `step_seen.NUMBERS`.
        unchanged: Whether the step left a parameter as it was, by parameter, as far as that is known.
    """

    vectors: Any
    cosines: dict[str, Any]
    numbers: dict[str, Any]
    unchanged: dict[str, Any]


def cosine(one: Any, other: Any) -> Any:
    """Returns the cosine of two gradients; NaN where one of them is zero."""
    wide = jnp.promote_types(one.dtype, jnp.float32)
    # Each is scaled to a largest element of one: the squares of small gradients underflow.
    one, other = (each.astype(wide) / jnp.abs(each).max(initial=0).astype(wide) for each in (one, other))
    return jnp.vdot(one, other).real / (jnp.linalg.norm(one.ravel()) * jnp.linalg.norm(other.ravel()))


def outline_of(seen: Seen) -> Seen:
    """Returns observations with shapes in place of arrays; from those of several steps, the shapes of one."""
    axes = jnp.ndim(seen.observed.loss)

    return jax.tree_util.tree_map(lambda leaf: jax.ShapeDtypeStruct(jnp.shape(leaf)[axes:], leaf.dtype), seen)
