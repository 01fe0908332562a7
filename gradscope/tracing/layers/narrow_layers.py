"""`NarrowLayers` finds the floating-point dtypes of fewer digits than float32 in which layers compute.

A layer of mixed precision may read and return float32, and multiply in bfloat16 in between.
"""

from __future__ import annotations

from functools import lru_cache, reduce
from typing import Any

import jax.numpy as jnp

from gradscope.tracing.jaxpr.frames import Frame, FrameKey
from gradscope.tracing.jaxpr.jaxcompat import Equation
from gradscope.tracing.layers.layers import LayerCall


class NarrowLayers:
    """NarrowLayers finds the narrowest dtypes inside of layers.

    Args:
        root: The frame of the whole program.
    """

    def __init__(self, root: Frame) -> None:
        self._narrow: dict[FrameKey, dict[int, Any]] = {}
        self._visit(root)

    def dtype(self, call: LayerCall) -> str | None:
        """Returns the dtype of the fewest digits in which a layer computes; None where float32 is that, or a finer one.

        Args:
            call: The layer.
        """
        narrow = self._narrow[call.frame.key]
        found = [narrow[number] for number in call.equations if number in narrow] if narrow else []
        return jnp.dtype(reduce(_narrower, found)).name if found else None

    def of_equation(self, frame: Frame, number: int) -> str | None:
        """Returns the narrow dtype of what an equation of a frame reads and makes, and of what is inside; or None."""
        found = self._narrow[frame.key].get(number)
        return None if found is None else jnp.dtype(found).name

    def _visit(self, frame: Frame) -> Any:
        """Notes the narrow dtypes of a frame's equations and of those inside, and returns the narrowest, or None."""
        narrow = self._narrow.setdefault(frame.key, {})
        for number, equation in enumerate(frame.jaxpr.eqns):
            own = _dtypes(equation)
            inside = [each for child in frame.children.get(number, ()) if (each := self._visit(child)) is not None]
            if found := [*own, *inside]:
                narrow[number] = reduce(_narrower, found)
        return reduce(_narrower, narrow.values()) if narrow else None


def _dtypes(equation: Equation) -> list[Any]:
    """Returns the narrow dtypes of what an equation reads and makes."""
    dtypes = {getattr(atom.aval, "dtype", None) for atom in (*equation.invars, *equation.outvars)}
    return [each for each in dtypes if _is_narrow(each)]


@lru_cache
def _is_narrow(dtype: Any) -> bool:
    is_floating = dtype is not None and jnp.issubdtype(dtype, jnp.floating)
    return is_floating and jnp.finfo(dtype).nmant < jnp.finfo(jnp.float32).nmant


def _narrower(first: Any, second: Any) -> Any:
    return min(first, second, key=lambda dtype: (jnp.finfo(dtype).nmant, str(dtype)))
