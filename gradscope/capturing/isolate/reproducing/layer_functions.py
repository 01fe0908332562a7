"""The two functions of a layer, its forward function and its VJP, are run and written as Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from gradscope.arrays.blocks import Array
from gradscope.arrays.dtypes import is_key
from gradscope.capturing.isolate.reproducing.to_python import PythonSource
from gradscope.instrument.taps import full_tensor
from gradscope.tracing.dataflow.reachability import Reach, is_inexact, reachability_from
from gradscope.tracing.jaxpr.frames import frame_tree
from gradscope.tracing.jaxpr.jaxcompat import Jaxpr, trace
from gradscope.tracing.lookup.layer_call import IsolatedLayer

#: The difference of two results that is still rounding, in machine epsilons of the result's norm.
_LAST_BITS: Final = 1024


class LayerFunctions:
    """`LayerFunctions` are `forward` and `vjp` of a layer.

    Args:
        isolated: The layer.

    Attributes:
        differentiated: Its inputs that have gradients, none of which has to pass what JAX cannot differentiate.
        pulled: Its outputs that have cotangents.
    """

    def __init__(self, isolated: IsolatedLayer) -> None:
        self._isolated = isolated
        frame = root = isolated.layer.frame
        while root.parent is not None:
            root = root.parent
        reach = reachability_from(root, isolated.layer.outputs)
        self.differentiated = tuple(
            atom for atom in isolated.inputs if is_inexact(atom) and reach.of(frame, atom) is not Reach.BARRED
        )
        self.pulled = tuple(filter(is_inexact, isolated.outputs))

    def forward(self, *values: Any) -> list[Any]:
        """Returns the outputs of the layer."""
        return self._isolated(values)

    def vjp(self, *arguments: Any) -> list[Any]:
        """Returns the gradients of the floating-point inputs; the arguments are all inputs and then the cotangents."""
        count = len(self._isolated.inputs)
        values = dict(zip(self._isolated.inputs, arguments[:count], strict=True))

        def run(inputs: Sequence[Any]) -> list[Any]:
            known = values | dict(zip(self.differentiated, inputs, strict=True))
            made = dict(zip(self._isolated.outputs, self._isolated([*known.values()]), strict=True))
            return [made[atom] for atom in self.pulled]

        _, pull_back = jax.vjp(run, [values[atom] for atom in self.differentiated])
        (gradients,) = pull_back(list(arguments[count:]))
        return gradients

    def run(self, inputs: Sequence[Array], cotangents: Sequence[Array]) -> tuple[list[Array], list[Array]]:
        """Returns the results of both functions on the host, of random keys their data."""
        return _run(self.forward, self.vjp, inputs, cotangents)

    def computed_dtypes(
        self, inputs: Sequence[Array], cotangents: Sequence[Array]
    ) -> tuple[frozenset[str], frozenset[str]]:
        """Returns the floating-point dtypes in which each of the two functions computes."""
        traced = (trace(self.forward, *inputs), trace(self.vjp, *inputs, *cotangents))
        forward, vjp = (frozenset(_inexact_dtypes(jaxpr)) for jaxpr, _, _ in traced)
        return forward, vjp

    def written(
        self, parameters: list[str], arrived: list[str], inputs: list[Array], cotangents: list[Array]
    ) -> tuple[tuple[str, ...], dict[str, Array]]:
        """Returns both functions as Python, and the constants that they read from `ARRAYS`.

        Args:
            parameters: Names of the inputs.
            arrived: Names of the cotangents.
            inputs: Values of the inputs.
            cotangents: Values of the cotangents.

        Returns:
            The lines, and the constants by name.

        Raises:
            UsageError: A part of them cannot be written as Python.
        """
        writer = PythonSource()
        lines = [
            *_lines(writer, self.forward, parameters, inputs),
            *("", ""),
            *_lines(writer, self.vjp, [*parameters, *arrived], [*inputs, *cotangents]),
        ]
        # Random keys stay random keys, which NumPy has not.
        constants: dict[str, Any] = {
            name: value if is_key(str(value.dtype)) else np.asarray(value)
            for name, value in ((name, jnp.asarray(each)) for name, each in writer.constants.items())
        }
        self._require_faithful(lines, constants, inputs, cotangents)
        return tuple(lines), constants

    def _require_faithful(
        self, lines: list[str], constants: Mapping[str, Any], inputs: list[Array], cotangents: list[Array]
    ) -> None:
        """Raises `RuntimeError` where the written functions do not compute what the layer computes."""
        scope: dict[str, Any] = {"jax": jax, "jnp": jnp, "np": np, "lax": lax, "ARRAYS": constants}
        exec("\n".join(lines), scope)  # noqa: S102 - gradscope wrote it, from a model that runs here anyway
        own = self.run(inputs, cotangents)
        again = _run(scope["forward"], scope["vjp"], inputs, cotangents)
        pairs = zip(jax.tree_util.tree_leaves(own), jax.tree_util.tree_leaves(again), strict=True)
        if not all(_within_rounding(one, other) for one, other in pairs):
            raise RuntimeError(
                f"the functions written for {self._isolated.name} do not compute what the layer computes"
            )


def _run(
    forward: Callable[..., Any], vjp: Callable[..., Any], inputs: Sequence[Array], cotangents: Sequence[Array]
) -> tuple[list[Array], list[Array]]:
    made = jax.jit(forward)(*inputs), jax.jit(vjp)(*inputs, *cotangents)
    return jax.device_get(jax.tree_util.tree_map(full_tensor, made))


def _inexact_dtypes(jaxpr: Jaxpr) -> Iterator[str]:
    # What the layer reads was rounded for the dump, and may not have been for the layer by a compiler that fused both.
    yield from (str(atom.aval.dtype) for atom in jaxpr.invars if is_inexact(atom))
    for frame in frame_tree(jaxpr).walk():
        for equation in frame.jaxpr.eqns:
            yield from (str(atom.aval.dtype) for atom in equation.outvars if is_inexact(atom))


def _lines(writer: PythonSource, function: Callable[..., Any], parameters: list[str], arrays: list[Array]) -> list[str]:
    jaxpr, constants, _ = trace(function, *arrays)
    return writer.function(function.__name__, parameters, jaxpr, constants, str(function.__doc__))


def _within_rounding(one: Array, other: Array) -> bool:
    """Returns whether two results differ by no more than another fusion of the same operations may make."""
    finite = np.isfinite(one)
    if not np.array_equal(finite, np.isfinite(other)):
        return False
    wide, again = (np.where(finite, each, 0).astype(np.complex128) for each in (one, other))
    epsilon = float(jnp.finfo(one.dtype).eps) if jnp.issubdtype(one.dtype, jnp.inexact) else 0.0
    return bool(np.linalg.norm(again - wide) <= _LAST_BITS * epsilon * np.linalg.norm(wide))
