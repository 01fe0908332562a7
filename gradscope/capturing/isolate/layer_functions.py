"""The two functions of a layer, what it makes and what it sends back: run, and written as Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from gradscope.arrays.blocks import Array
from gradscope.capturing.isolate.to_python import PythonSource
from gradscope.tracing.dataflow.reachability import is_inexact
from gradscope.tracing.jaxpr.jaxcompat import trace
from gradscope.tracing.lookup.layer_call import LayerAlone

#: Relative to a result's norm, in machine epsilons.
_LAST_BITS: Final = 1024


class LayerFunctions:
    """`forward` and `vjp` of a layer.

    Args:
        alone: The layer.

    Attributes:
        differentiated: Its inputs that have gradients.
        pulled: Its outputs that a cotangent arrives at.
    """

    def __init__(self, alone: LayerAlone) -> None:
        self._alone = alone
        self.differentiated = tuple(filter(is_inexact, alone.inputs))
        self.pulled = tuple(filter(is_inexact, alone.outputs))

    def forward(self, *values: Any) -> list[Any]:
        """What the layer makes of its inputs."""
        return self._alone(values)

    def vjp(self, *given: Any) -> list[Any]:
        """What it sends back to its floating-point inputs, of all inputs and then cotangents."""
        count = len(self._alone.inputs)
        values = dict(zip(self._alone.inputs, given[:count], strict=True))

        def run(chosen: Sequence[Any]) -> list[Any]:
            known = values | dict(zip(self.differentiated, chosen, strict=True))
            made = dict(zip(self._alone.outputs, self._alone([*known.values()]), strict=True))
            return [made[atom] for atom in self.pulled]

        _, pull_back = jax.vjp(run, [values[atom] for atom in self.differentiated])
        (sent,) = pull_back(list(given[count:]))
        return sent

    def run(self, inputs: Sequence[Array], cotangents: Sequence[Array]) -> tuple[list[Array], list[Array]]:
        """What both give."""
        return jax.device_get((jax.jit(self.forward)(*inputs), jax.jit(self.vjp)(*inputs, *cotangents)))

    def written(
        self, parameters: list[str], arrived: list[str], inputs: list[Array], cotangents: list[Array]
    ) -> tuple[tuple[str, ...], dict[str, Array]]:
        """Both as Python, and the constants that it reads from `ARRAYS`.

        Args:
            parameters: What the inputs are called.
            arrived: What the cotangents are called.
            inputs: Their values.
            cotangents: Their values.

        Raises:
            UsageError: Something in them cannot be written as Python.
        """
        writer = PythonSource()
        lines = [
            *_lines(writer, self.forward, parameters, inputs),
            *("", ""),
            *_lines(writer, self.vjp, [*parameters, *arrived], [*inputs, *cotangents]),
        ]
        constants = {name: np.asarray(value) for name, value in writer.constants.items()}
        self._require_faithful(lines, constants, inputs, cotangents)
        return tuple(lines), constants

    def _require_faithful(
        self, lines: list[str], constants: Mapping[str, Array], inputs: list[Array], cotangents: list[Array]
    ) -> None:
        """See that what was written gives what the layer gives."""
        scope: dict[str, Any] = {"jax": jax, "jnp": jnp, "np": np, "lax": lax, "ARRAYS": constants}
        exec("\n".join(lines), scope)  # noqa: S102 - it is of our own making, from a model that runs here anyway
        own = self.run(inputs, cotangents)
        again = jax.device_get((jax.jit(scope["forward"])(*inputs), jax.jit(scope["vjp"])(*inputs, *cotangents)))
        pairs = zip(jax.tree_util.tree_leaves(own), jax.tree_util.tree_leaves(again), strict=True)
        if not all(_within_rounding(one, other) for one, other in pairs):
            raise RuntimeError(f"what was written for {self._alone.name} does not give what the layer gives")


def _lines(writer: PythonSource, function: Callable[..., Any], parameters: list[str], arrays: list[Array]) -> list[str]:
    jaxpr, constants, _ = trace(function, *arrays)
    return writer.function(function.__name__, parameters, jaxpr, constants, str(function.__doc__))


def _within_rounding(one: Array, other: Array) -> bool:
    """Whether two results differ by no more than another fusion of the same operations may make of them."""
    finite = np.isfinite(one)
    if not np.array_equal(finite, np.isfinite(other)):
        return False
    wide, again = (np.where(finite, each, 0).astype(np.complex128) for each in (one, other))
    epsilon = float(jnp.finfo(one.dtype).eps) if jnp.issubdtype(one.dtype, jnp.inexact) else 0.0
    return bool(np.linalg.norm(again - wide) <= _LAST_BITS * epsilon * np.linalg.norm(wide))
