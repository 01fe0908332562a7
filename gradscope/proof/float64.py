"""Float64 computation runs a model at the numbers that it has in its own precision."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any, Final

import jax
import jax.experimental
import jax.numpy as jnp
import numpy as np

from gradscope.tracing.dataflow.liveness import Liveness
from gradscope.tracing.dataflow.reachability import is_inexact
from gradscope.tracing.jaxpr.frames import Frame

_WIDE: Final = float(np.finfo(np.float64).eps)


def wide_types() -> AbstractContextManager[None]:
    """Returns a context in which JAX has 64-bit types."""
    library: Any = jax if hasattr(jax, "enable_x64") else jax.experimental  # where it was before 0.8
    return library.enable_x64(True)


def coarsest_epsilon(frames: Iterable[Frame], liveness: Liveness) -> float:
    """Returns the relative precision of the narrowest floating-point type that the frames compute in.

    A model can compute in a narrower type than its arguments have, which limits the precision of finite differences.

    Args:
        frames: The frames.
        liveness: Which of their equations count.
    """
    variables = (v for frame in frames for number in liveness.live(frame) for v in frame.jaxpr.eqns[number].outvars)
    return max((_epsilon(variable) for variable in variables if is_inexact(variable)), default=_WIDE)


def _epsilon(variable: Any) -> float:
    return float(jnp.finfo(variable.aval.dtype).eps)


def widened(leaf: Any) -> Any:
    """Returns an array as float64 or complex128; integers, booleans and keys are returned unchanged."""
    if jnp.issubdtype(leaf.dtype, jnp.complexfloating):
        return jnp.asarray(np.asarray(leaf).astype(np.complex128))
    if jnp.issubdtype(leaf.dtype, jnp.floating):
        return jnp.asarray(np.asarray(leaf).astype(np.float64))
    return leaf
