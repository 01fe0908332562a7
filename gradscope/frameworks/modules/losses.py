r"""Losses are the loss functions that `--loss` can select for a module's outputs.

- `cross-entropy`: mean over all positions of :math:`-\log \mathrm{softmax}(z)_{y}`, for logits `z` with the classes
  along the last axis and integer labels `y`, computed in float32 or wider;
- `mse`: mean over all elements of the squared distance from the labels;
- `sum`, `mean`: of all elements of all floating-point outputs; they need no labels.

Of several outputs the first two use the one with the name `logits`; else the first floating-point one, or each of them
where all count (`objective`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import jax
import jax.numpy as jnp
from jax import Array

from gradscope.errors import ModelError, UsageError
from gradscope.frameworks.modules.input_spec import InputSpec, InputValues
from gradscope.frameworks.modules.outputs import floating_outputs
from gradscope.frameworks.modules.request import LossName

#: Name of the output that is used before others.
_LOGITS: Final = "logits"


def labels_spec(loss: LossName, outputs: Any) -> InputSpec | None:
    """Returns the spec of the labels of a loss; None for a loss without labels.

    Args:
        loss: The loss.
        outputs: Pytree of the module's outputs or their shapes.

    Returns:
        The spec.

    Raises:
        ModelError: There is no output that the loss can use.
    """
    if loss in ("sum", "mean"):
        return None
    predictions = _predictions(outputs)
    if loss == "mse":
        return InputSpec.of(predictions.dtype.name, tuple(predictions.shape))
    shape = tuple(predictions.shape)
    classes = shape[-1] if shape else 0
    if classes < 2:
        raise ModelError(
            f"cross-entropy needs an output with classes along its last axis, and it has shape {shape}",
            hint="choose another --loss: mse, sum or mean",
        )
    return InputSpec(dtype="int32", shape=shape[:-1], values=InputValues(kind="uniform", numbers=(0, classes)))


def loss_value(loss: LossName, outputs: Any, labels: Any) -> Array:
    """Returns the loss of a module's outputs.

    Args:
        loss: The loss.
        outputs: Pytree of the module's outputs.
        labels: Labels of the spec of `labels_spec`; None for a loss without labels.

    Returns:
        The scalar.

    Raises:
        ModelError: There is no output that the loss can use.
    """
    return _LOSSES[loss](outputs, labels)


def _cross_entropy(outputs: Any, labels: Array) -> Array:
    logits = _predictions(outputs)
    wide = logits.astype(jnp.float32) if logits.dtype.itemsize < 4 else logits
    log_likelihoods = jax.nn.log_softmax(wide)
    return -jnp.take_along_axis(log_likelihoods, labels[..., None], axis=-1).mean()


def _mse(outputs: Any, labels: Array) -> Array:
    return jnp.square(_predictions(outputs) - labels).mean()


def _sum(outputs: Any, _: None) -> Array:
    return _total(_floating(outputs))


def _mean(outputs: Any, _: None) -> Array:
    leaves = _floating(outputs)
    total = _total(leaves)
    return total / jnp.asarray(sum(leaf.size for leaf in leaves.values()), total.dtype)


_LOSSES: Final[Mapping[LossName, Callable[[Any, Any], Array]]] = {
    "cross-entropy": _cross_entropy,
    "mse": _mse,
    "sum": _sum,
    "mean": _mean,
}


def _total(leaves: Mapping[str, Array]) -> Array:
    sums = [leaf.sum() for leaf in leaves.values()]
    widest = jnp.result_type(*sums)
    return sum((each.astype(widest) for each in sums[1:]), start=sums[0].astype(widest))


def counted_outputs(outputs: Any, *, every: bool) -> dict[str, Any]:
    """Returns the floating-point outputs that a loss counts, by path.

    Args:
        outputs: Pytree of the module's outputs or their shapes.
        every: Whether all count where none is called `logits`; otherwise only the first does.

    Raises:
        ModelError: There is none.
    """
    leaves = _floating(outputs)
    logits = next((path for path in leaves if path.rpartition("/")[2] == _LOGITS), None)
    if logits is None and every:
        return leaves
    counted = logits or next(iter(leaves))
    return {counted: leaves[counted]}


def require_labels(loss: LossName, output: Any, labels: InputSpec) -> None:
    """Raises an error for labels that do not fit an output.

    Raises:
        UsageError: They have another shape, or are no classes that the output has.
    """
    needed = labels_spec(loss, output)
    assert needed is not None, "a loss without labels is given none"
    if labels.shape != needed.shape:
        raise UsageError(f"the labels are {labels}, and {loss} of this output needs {needed}")
    if loss != "cross-entropy":
        return
    classes, numbers = int(needed.values.numbers[1]), labels.values.numbers or (0, 1)
    low, last = min(numbers), max(numbers) - (labels.values.kind == "uniform")
    if not jnp.issubdtype(jnp.dtype(labels.dtype), jnp.integer) or low < 0 or last >= classes:
        raise UsageError(f"the labels are {labels}, and cross-entropy needs integers from 0 to {classes - 1}")


def _predictions(outputs: Any) -> Any:
    return next(iter(counted_outputs(outputs, every=False).values()))


def _floating(outputs: Any) -> dict[str, Any]:
    leaves = floating_outputs(outputs)
    if not leaves:
        raise ModelError("the module returns no floating-point array", hint="there is nothing to differentiate")
    return leaves
