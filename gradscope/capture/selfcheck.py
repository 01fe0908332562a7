"""The self-check: does observing change the gradients?

Operation by operation it cannot: every tap is the identity, forward and backward. Compiled, the observations are extra
outputs, which change what the compiler fuses and so the order of some roundings. The self-check runs the user's own
loss under `jax.jit(jax.value_and_grad(...))`, without any tap, and measures the difference.

A difference is *beyond rounding* when both hold for a parameter: it exceeds the tolerance relative to that parameter's
own gradient, and it exceeds what rounding leaves in the whole gradient (some gradients are zero but for rounding, such
as that of a bias before a normalisation, and differ from themselves by as much as they are).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from gradscope import naming
from gradscope.capture.preparation import Prepared
from gradscope.capture.run import Run
from gradscope.dump.record import Json
from gradscope.tracing.tracer import Leaf
from gradscope.tracing.userframes import user_code

#: Largest relative difference that rounding may make, by significand width: ten thousand units in the last place for
#: narrow types whose sums are long, 1e-12 for float64.
_TOLERANCE: Final = {"float64": 1e-12, "float32": 1e-3, "float16": 5e-2, "bfloat16": 2e-1}
#: Units in the last place of the whole gradient's norm that rounding may leave in any part of it.
_FLOOR_ULPS: Final = 256


def self_check(loss: Callable[[Any, Any], Any], prepared: Prepared, run: Run) -> dict[str, Json]:
    """Run the untouched loss and compare its parameter gradients with the observed run's.

    Returns:
        `total` parameters compared, `bit_equal` of them, `max_rel_l2`, `loss_bit_equal`, `rel_l2` by parameter,
        and `beyond_rounding`: the names of those that differ by more than rounding can explain.
    """
    leaves = prepared.trace.arguments
    numbers = [n for n, leaf in enumerate(leaves) if leaf.family == naming.PARAM and leaf.differentiated]
    value, plain = _plain_gradients(loss, prepared, numbers)
    observed = {number: np.asarray(run.observed.gradients[number]) for number in numbers}
    whole = float(np.sqrt(sum(_norm(gradient) ** 2 for gradient in plain.values())))
    errors = {leaves[n].name: _relative(observed[n], plain[n]) for n in numbers}
    beyond = [leaves[n].name for n in numbers if _beyond_rounding(leaves[n], observed[n], plain[n], whole)]
    return {
        "total": len(numbers),
        "bit_equal": sum(observed[n].tobytes() == plain[n].tobytes() for n in numbers),
        "max_rel_l2": max(errors.values(), default=0.0),
        "loss_bit_equal": value.tobytes() == np.asarray(run.observed.loss).tobytes(),
        "rel_l2": dict(errors),
        "beyond_rounding": list(beyond),
    }


def _plain_gradients(
    loss: Callable[[Any, Any], Any], prepared: Prepared, numbers: list[int]
) -> tuple[np.ndarray, Mapping[int, np.ndarray]]:
    leaves, tree = jax.tree_util.tree_flatten((prepared.variables, prepared.batch))

    def value(chosen: dict[int, Any], rest: list[Any]) -> Any:
        out = loss(*jax.tree_util.tree_unflatten(tree, [chosen.get(n, leaf) for n, leaf in enumerate(rest)]))
        return out[0] if isinstance(out, tuple) else out

    chosen = {number: leaves[number] for number in numbers}
    with user_code("self-check"):
        loss_value, gradients = jax.jit(jax.value_and_grad(value))(chosen, leaves)
    return np.asarray(loss_value), {number: np.asarray(gradient) for number, gradient in gradients.items()}


def _norm(array: np.ndarray) -> float:
    """The l2 norm of the finite elements."""
    wide = array.astype(np.complex128 if jnp.issubdtype(array.dtype, jnp.complexfloating) else np.float64)
    return float(np.linalg.norm(np.where(np.isfinite(wide), wide, 0).ravel()))


def _difference(observed: np.ndarray, plain: np.ndarray) -> float:
    """The l2 norm of the difference of the finite elements; infinite where one is finite and the other is not."""
    if not np.array_equal(np.isfinite(observed), np.isfinite(plain)):
        return float("inf")
    with np.errstate(invalid="ignore"):
        wide = np.complex128 if jnp.issubdtype(plain.dtype, jnp.complexfloating) else np.float64
        return _norm(observed.astype(wide) - plain.astype(wide))


def _relative(observed: np.ndarray, plain: np.ndarray) -> float:
    difference = _difference(observed, plain)
    reference = _norm(plain)
    return 0.0 if difference == 0.0 else float("inf") if reference == 0.0 else difference / reference


def _beyond_rounding(leaf: Leaf, observed: np.ndarray, plain: np.ndarray, whole: float) -> bool:
    difference = _difference(observed, plain)
    kind = jnp.finfo(leaf.dtype)
    relative = _TOLERANCE.get(str(kind.dtype), max(_TOLERANCE.values()))
    return difference > relative * _norm(plain) and difference > _FLOOR_ULPS * float(kind.eps) * whole
