"""Host calls run a NumPy function on a value inside a compiled program, where the CPU is the device.

The function receives the buffer itself, without a copy. `jax.pure_callback` first makes a JAX array of it, which takes
longer than to reduce it to its statistics. JAX passes buffers from 0.6.1; before that, `jax.pure_callback` is used.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import numpy as np

try:
    from jax.experimental.buffer_callback import buffer_callback
except ImportError:
    buffer_callback = None


def made_on_host(function: Callable[..., np.ndarray], shape: jax.ShapeDtypeStruct, *operands: Any) -> Any:
    """Returns the result of a function of NumPy arrays on the CPU backend, as part of a traced program.

    Args:
        function: Pure and one of few, since it is kept; receives arrays that it may read only while it runs.
        shape: The shape and dtype of its result.
        operands: The arrays.
    """
    if buffer_callback is None:
        return jax.pure_callback(
            lambda *arrays: function(*map(np.asarray, arrays)), shape, *operands, vmap_method="sequential"
        )

    return buffer_callback(_filling(function), shape, vmap_method="sequential")(*operands)


@cache
def _filling(function: Callable[..., np.ndarray]) -> Callable[..., None]:
    """Returns the function as JAX calls it: always the same one, for which JAX finds what it has compiled."""

    def fill(_context: Any, made: Any, *injected: Any) -> None:
        np.asarray(made)[...] = function(*map(np.asarray, injected))

    return fill
