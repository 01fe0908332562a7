"""Taps and sinks observe a value inside a differentiated program without changing it.

A *tap* is the identity on a value with a second argument, the *sink*. Its backward rule returns the cotangent unchanged
for the value and, as the sink's "gradient", whatever an *observer* makes of the cotangent: the cotangent itself, or
statistics of it. Differentiating with respect to the sinks then brings every observation out of one `jax.vjp`.

Why not `value + sink`: addition turns -0.0 into 0.0 and makes the compiler fuse differently.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp


class Observer(Protocol):
    """An `Observer` computes the array that is kept of a value."""

    def __call__(self, value: Any) -> Any:
        """Returns the observation of `value`, of inexact dtype wherever `value` has one.

        Args:
            value: The value.
        """
        ...


def full_tensor(value: Any) -> Any:
    """Returns the value itself, or the data of a typed PRNG key; an observer."""
    if jnp.issubdtype(jax.typeof(value).dtype, jax.dtypes.prng_key):
        return jax.random.key_data(value)
    return value


def tap(value: Any, sink: Any, observe: Observer, reached: Callable[[], None]) -> Any:
    """Returns `value` unchanged; the gradient with respect to `sink` is `observe` of the cotangent of `value`.

    Args:
        value: An array of inexact dtype.
        sink: Zeros of the shape and dtype that `observe` returns for an array like `value`.
        observe: The observer of the cotangent.
        reached: Called while the backward pass is traced, if a cotangent arrives at all: JAX does not run the backward
            rule of a value that the loss is not differentiably connected to.
    """

    @jax.custom_vjp
    def identity(value: Any, _sink: Any) -> Any:
        return value

    def forward(value: Any, _sink: Any) -> tuple[Any, None]:
        return value, None

    def backward(_residual: None, cotangent: Any) -> tuple[Any, Any]:
        reached()
        return cotangent, observe(cotangent)

    identity.defvjp(forward, backward)
    return identity(value, sink)


def tap_aside(
    values: Mapping[int, Any],
    operands: Sequence[Any],
    sinks: Mapping[int, Any],
    pulled: Callable[[Sequence[Any], Mapping[int, Any]], Mapping[int, Any]],
) -> dict[int, Any]:
    """Returns values unchanged; the gradients with respect to the sinks are computed from all of their cotangents.

    Args:
        values: Arrays of inexact dtype.
        operands: Further arguments of `pulled`; no gradient flows to these.
        sinks: Zeros of the shapes and dtypes that `pulled` returns.
        pulled: Computes the gradients of the sinks, by key, from the operands and the cotangents. Not called where no
            cotangent arrives.
    """

    @jax.custom_vjp
    def identity(values: Any, _operands: Any, _sinks: Any) -> Any:
        return values

    def forward(values: Any, operands: Any, _sinks: Any) -> tuple[Any, Any]:
        return values, operands

    def backward(operands: Any, cotangents: Any) -> tuple[Any, None, Any]:
        return cotangents, None, pulled(operands, cotangents)

    identity.defvjp(forward, backward)
    return identity(dict(values), list(operands), dict(sinks))


def watch(values: Mapping[int, Any], reached: Callable[[int], None]) -> dict[int, Any]:
    """Returns values unchanged, and reports at which of them a cotangent arrives: taps that keep nothing.

    Args:
        values: Arrays, or other pytrees.
        reached: Called with the key of each, while the backward pass is traced.
    """
    # One rule for all: making one takes JAX two milliseconds, and a deep network has thousands of parameters.

    @jax.custom_vjp
    def identity(values: Any) -> Any:
        return values

    def forward(values: Any) -> tuple[Any, None]:
        return jax.tree_util.tree_map(lambda primal: primal.value, values), None

    def backward(_residual: None, cotangents: Any) -> tuple[Any]:
        passed: dict[int, Any] = {}
        for key, cotangent in cotangents.items():
            leaves = jax.tree_util.tree_leaves(cotangent)
            arrived = not all(isinstance(leaf, jax.custom_derivatives.SymbolicZero) for leaf in leaves)
            if arrived:
                reached(key)
            passed[key] = cotangent if arrived else None
        return (passed,)

    identity.defvjp(forward, backward, symbolic_zeros=True)
    return identity(dict(values))
