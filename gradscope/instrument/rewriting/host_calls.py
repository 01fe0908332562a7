"""Host calls: NumPy at work on a value in the middle of a compiled program, where the CPU is the device.

The function is handed the buffer itself, as it lies. `jax.pure_callback` first makes a JAX array of it, which takes
longer than to reduce it to its statistics. JAX returns buffers from 0.6.1; before that, there is only the long way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

try:
    from jax.experimental.buffer_callback import buffer_callback
except ImportError:
    buffer_callback = None


def made_on_host(function: Callable[[np.ndarray], np.ndarray], shape: jax.ShapeDtypeStruct, operand: Any) -> Any:
    """What a function of NumPy arrays makes of an array on the CPU backend, as part of a traced program.

    Args:
        function: Pure; gets an array that it may read only while it runs.
        shape: The shape and dtype of what it makes.
        operand: The array.
    """
    if buffer_callback is None:
        return jax.pure_callback(lambda array: function(np.asarray(array)), shape, operand, vmap_method="sequential")

    def fill(_context: Any, made: Any, injected: Any) -> None:
        np.asarray(made)[...] = function(np.asarray(injected))

    return buffer_callback(fill, shape, vmap_method="sequential")(operand)
