"""Gradients are clipped as TensorFlow 1 does: by value, by norm, by average norm, or by global norm.

Each is a gradient transformation of optax, so that it can also be a part of an `optax.chain`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.core import Tracer

from gradscope.errors import UsageError
from gradscope.typed_arguments import typed


@typed()
def value(low: float, high: float | None = None) -> optax.GradientTransformation:
    """Returns a clip of every element to a range, `tf.clip_by_value`.

    Args:
        low: The least value; of a single argument c the range is -c to c.
        high: The greatest value.

    Returns:
        A gradient transformation without a state, which keeps the gradients' shapes and dtypes.

    Raises:
        UsageError: The range is empty.

    Example:
        >>> import jax.numpy as jnp
        >>> import gradscope as gs
        >>> clip = gs.clip.value(-1, 2)
        >>> clip.update(jnp.array([-3.0, 0.5, 3.0]), clip.init(None))[0].tolist()
        [-1.0, 0.5, 2.0]
    """
    least, greatest = (-abs(low), abs(low)) if high is None else (low, high)
    if not _is_traced(low) and not _is_traced(high) and not least < greatest:
        raise UsageError(f"clipping to values from {least:g} to {greatest:g} leaves no gradient", hint="value(-1, 1)")
    return _per_tensor(lambda gradient: jnp.clip(gradient, least, greatest))


@typed()
def norm(limit: float) -> optax.GradientTransformation:
    """Returns a clip of every tensor to an l2 norm, `tf.clip_by_norm`: a longer one is scaled down to it.

    Args:
        limit: The largest norm; above 0.

    Returns:
        A gradient transformation without a state, which keeps the gradients' shapes and dtypes.

    Raises:
        UsageError: The limit is not above 0.

    Example:
        >>> import jax.numpy as jnp
        >>> import gradscope as gs
        >>> clip = gs.clip.norm(1)
        >>> clip.update({"w": jnp.array([3.0, 4.0]), "b": jnp.array([0.5])}, clip.init(None))[0]["w"].tolist()
        [0.6000000238418579, 0.800000011920929]
    """
    _require_positive("norm", limit)
    return _per_tensor(lambda gradient: gradient * limit / jnp.maximum(_l2(gradient), limit))


@typed()
def average_norm(limit: float) -> optax.GradientTransformation:
    """Returns a clip of every tensor to an l2 norm per element, `tf.clip_by_average_norm`.

    Args:
        limit: The largest norm divided by the number of elements; above 0.

    Returns:
        A gradient transformation without a state, which keeps the gradients' shapes and dtypes.

    Raises:
        UsageError: The limit is not above 0.

    Example:
        >>> import jax.numpy as jnp
        >>> import gradscope as gs
        >>> clip = gs.clip.average_norm(0.5)
        >>> clip.update(jnp.array([3.0, 4.0]), clip.init(None))[0].tolist()
        [0.6000000238418579, 0.800000011920929]
    """
    _require_positive("average_norm", limit)
    return _per_tensor(lambda gradient: gradient * limit / jnp.maximum(_l2(gradient) / max(gradient.size, 1), limit))


@typed()
def global_norm(limit: float) -> optax.GradientTransformation:
    """Returns a clip of all tensors together to one l2 norm, `tf.clip_by_global_norm`.

    Args:
        limit: The largest norm; above 0.

    Returns:
        A gradient transformation without a state, which keeps the gradients' shapes and dtypes.

    Raises:
        UsageError: The limit is not above 0.

    Example:
        >>> import jax.numpy as jnp
        >>> import gradscope as gs
        >>> clip = gs.clip.global_norm(1)
        >>> clip.update({"a": jnp.array([3.0]), "b": jnp.array([4.0])}, clip.init({}))[0]["a"].tolist()
        [0.6000000238418579]
    """
    _require_positive("global_norm", limit)
    return optax.clip_by_global_norm(limit)


def _per_tensor(clipped: Callable[[Any], Any]) -> optax.GradientTransformation:
    # A limit that a schedule makes is an array, whose dtype the gradients do not take on.
    kept = lambda gradient: clipped(gradient).astype(gradient.dtype)  # noqa: E731 - one expression, named for its use
    return optax.stateless(lambda gradients, _params: jax.tree_util.tree_map(kept, gradients))


def _l2(gradient: Any) -> Any:
    return jnp.sqrt(jnp.sum(jnp.square(jnp.abs(gradient))))


def _is_traced(limit: Any) -> bool:
    """Returns whether a limit is only known when the step runs, as that of `optax.inject_hyperparams` is."""
    return isinstance(limit, Tracer)


def _require_positive(name: str, limit: float) -> None:
    if not _is_traced(limit) and not (limit > 0 and math.isfinite(limit)):
        raise UsageError(f"clipping by {name} needs a limit above 0, not {limit:g}", hint=f"for example {name}(1)")
