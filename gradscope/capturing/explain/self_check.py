"""The self-check measures how much observing changes the gradients.

Operation by operation it changes nothing: every tap is the identity, forward and backward. Compiled, the observations
are extra outputs, which change what the compiler fuses and so the order of some roundings. The self-check runs the
user's own loss under `jax.jit(jax.value_and_grad(...))`, without any tap, and measures the difference.

The difference that rounding may make depends on the model: in a ResNet-50 at initialisation, a change in the last bit
of the arguments changes a gradient by one per cent. So this is measured too: the plain program runs once more, with
every argument changed in its last bit. A gradient differs *beyond rounding* when it differs by many times that effect.
A gradient that this effect changes by a good part of itself is *zero but for rounding*, as that of the bias of
attention's keys is. Its relative difference means nothing, and is left out of the largest one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from gradscope import naming
from gradscope.capturing.execution.plain_loss import PlainLoss
from gradscope.capturing.execution.preparation import Prepared
from gradscope.capturing.execution.run import Run
from gradscope.capturing.run_environment import machine_provenance
from gradscope.comparison.default_tolerances import in_products, matmul_dtype
from gradscope.comparison.precision import component_name, machine_epsilon
from gradscope.dump.record import Json
from gradscope.tracing.user_frames import user_code

#: How many times the effect of a last-bit change is still rounding.
_NOISE_FACTOR: Final = 32.0
#: Units in the last place, of a gradient's norm, that are rounding whatever the model.
_ALWAYS_ROUNDING: Final = 16.0

#: The share of a gradient that a last-bit change may change before the gradient counts as zero but for rounding.
_ALL_NOISE: Final = 0.25

_Gradients: TypeAlias = Mapping[int, np.ndarray]


def self_check(loss: Callable[[Any, Any], Any], prepared: Prepared, run: Run) -> dict[str, Json]:
    """Runs the untouched loss and compares its parameter gradients with the observed run's.

    Args:
        loss: The loss.
        prepared: Its arguments.
        run: The observed run.

    Returns:
        `total` parameters compared, `bit_equal` of them, `max_rel_l2` and the parameter that has it, `largest`,
        `loss_bit_equal`, by parameter `rel_l2` and `noise` (the relative effect of a last-bit change of the arguments),
        `zero_but_rounding`: the names of those whose gradient is, which have no part in `max_rel_l2`; and
        `beyond_rounding`: the names of those that differ by more than rounding can explain.
    """
    names = {number: leaf.name for number, leaf in enumerate(prepared.resolved.trace.arguments) if _compared(leaf)}
    plain = _PlainProgram(loss, prepared, list(names))
    value, reference = plain(prepared.leaves)
    _, moved = plain([nudged(leaf, seed) for seed, leaf in enumerate(prepared.leaves)])
    observed = {number: np.asarray(run.observed.gradients[number]) for number in names}
    errors = {names[n]: _relative(separation(observed[n], reference[n]), reference[n]) for n in names}
    noise = {names[n]: _relative(separation(moved[n], reference[n]), reference[n]) for n in names}
    scale = max((length(each) for each in reference.values()), default=0.0)
    zero = [names[n] for n in names if _is_zero(reference[n], observed[n], noise[names[n]], scale)]
    measured = {name: error for name, error in errors.items() if name not in zero}
    return {
        "total": len(names),
        "bit_equal": sum(observed[n].tobytes() == reference[n].tobytes() for n in names),
        "max_rel_l2": max(measured.values(), default=0.0),
        **({"largest": max(measured, key=lambda name: measured[name])} if any(measured.values()) else {}),
        "zero_but_rounding": list(zero),
        "loss_bit_equal": value.tobytes() == np.asarray(run.observed.loss).tobytes(),
        "rel_l2": dict(errors),
        "noise": dict(noise),
        "beyond_rounding": [
            names[n]
            for n in names
            if names[n] not in zero and errors[names[n]] > rounding(reference[n].dtype, noise[names[n]])
        ],
    }


def _is_zero(reference: np.ndarray, observed: np.ndarray, noise: float, scale: float) -> bool:
    """Returns whether a gradient is zero but for rounding.

    Args:
        reference: The gradient of the plain program.
        observed: That of the observed one.
        noise: The relative effect of a last-bit change of the arguments.
        scale: The largest norm of a gradient of the model.
    """
    if length(reference) == 0.0:  # exactly, so that nothing is relative to it
        floor = _ALWAYS_ROUNDING * float(jnp.finfo(reference.dtype).eps) * scale
        return 0.0 < separation(observed, reference) <= floor
    return (
        _ALL_NOISE <= noise < float("inf")
        and separation(observed, reference) <= length(reference) * noise * _NOISE_FACTOR
    )


def _compared(leaf: Any) -> bool:
    return leaf.family == naming.PARAM and leaf.differentiated


class _PlainProgram:
    """A `_PlainProgram` is the user's loss with its gradients, compiled without any tap.

    Args:
        loss: The loss.
        prepared: Its arguments.
        numbers: The leaves of the arguments that are differentiated.
    """

    def __init__(self, loss: Callable[[Any, Any], Any], prepared: Prepared, numbers: list[int]) -> None:
        self._numbers = numbers
        self._program = jax.jit(jax.value_and_grad(PlainLoss(loss, prepared)))

    def __call__(self, leaves: Any) -> tuple[np.ndarray, _Gradients]:
        with user_code("self-check"):
            value, gradients = self._program({n: leaves[n] for n in self._numbers}, list(leaves))
        return np.asarray(value), {number: np.asarray(gradient) for number, gradient in gradients.items()}


def nudged(leaf: Any, seed: int) -> Any:
    """Returns an argument with every element of inexact dtype changed in its last bit, up or down at random.

    The last bit is that of the factors of products where these have fewer than the dtype, as on a GPU by default: they
    would not see a smaller change.
    """
    if not jnp.issubdtype(leaf.dtype, jnp.inexact):
        return leaf
    host = np.asarray(leaf)
    up = np.random.default_rng(seed).integers(0, 2, host.shape, bool)
    eps = machine_epsilon(in_products(component_name(str(leaf.dtype)), matmul_dtype(machine_provenance())))
    return jax.device_put(
        np.where(up, host * host.dtype.type(1 + eps), host * host.dtype.type(1 - eps)).astype(host.dtype)
    )


def rounding(dtype: np.dtype[Any], noise: float) -> float:
    """Returns the largest relative difference that rounding may make.

    Args:
        dtype: The dtype of the gradient.
        noise: The relative effect of a last-bit change of the arguments.
    """
    return max(_NOISE_FACTOR * noise, _ALWAYS_ROUNDING * float(jnp.finfo(dtype).eps))


def separation(one: np.ndarray, other: np.ndarray) -> float:
    """Returns the l2 norm of the difference of the finite elements; infinite where different elements are finite."""
    if not np.array_equal(np.isfinite(one), np.isfinite(other)):
        return float("inf")
    with np.errstate(invalid="ignore"):
        return length(_wide(one) - _wide(other))


def _relative(difference: float, reference: np.ndarray) -> float:
    norm = length(reference)
    return 0.0 if difference == 0.0 else float("inf") if norm == 0.0 else difference / norm


def _wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.complex128 if jnp.issubdtype(array.dtype, jnp.complexfloating) else np.float64)


def length(array: np.ndarray) -> float:
    """Returns the l2 norm of the finite elements."""
    wide = _wide(array)
    return float(np.linalg.norm(np.where(np.isfinite(wide), wide, 0).ravel()))
