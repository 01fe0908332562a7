"""The loss of a Keras model is what its `fit` would minimise: the compiled loss, and the losses that the model adds.

Those are regularisations of weights and activities, and what layers pass to `add_loss`: `model.losses`. A model with a
`compute_loss` of its own has that in the place of both. One without it that is not compiled with a loss has no loss of
its outputs; the mean squared error of all of them takes its place.

Labels are drawn for each output, as the loss of that output needs them: classes, classes as vectors, zeros and ones, or
numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import jax
import jax.numpy as jnp
import keras
from jax import Array

from gradscope.errors import ModelError, UsageError
from gradscope.frameworks.modules.adapter import Variables
from gradscope.frameworks.modules.calling import CallShape
from gradscope.frameworks.modules.input_spec import InputSpec, InputValues
from gradscope.frameworks.modules.objective import ADDED_LOSSES, ONLY, Called, Objective, added_in_words
from gradscope.frameworks.modules.outputs import floating_outputs, named_outputs
from gradscope.protocols import implements

#: Words in the names of losses, and the labels that such a loss takes; the first that is in the name decides.
_LABELS: Final = ("sparse", "categorical", "crossentropy", "hinge")

#: What Keras calls the weights of the examples.
_WEIGHTS: Final = "sample_weight"

#: The method of a model that makes the loss.
COMPUTE_LOSS: Final = "compute_loss"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledLoss:
    """A `CompiledLoss` is the loss with which a model was compiled, and the losses that the model adds.

    Attributes:
        net: The model.
        train: Whether it runs in training mode.
        ordered: Returns the values of the model's variables in Keras' order, trainable ones and others.
        given: Returns the inputs of a call in the structure in which `fit` has them.
    """

    net: Any
    train: bool
    ordered: Callable[[Variables], tuple[list[Any], list[Any]]]
    given: Callable[[CallShape, Mapping[str, Any]], Any]

    @property
    def name(self) -> str:
        """What `fit` calls it."""
        return "the model's own"

    @property
    def weights(self) -> str:
        """What `fit` calls the weights of the examples."""
        return _WEIGHTS

    @implements(Objective)
    def labels(self, outputs: Any) -> Mapping[str, InputSpec]:
        flat = self._by_name(outputs)
        losses = {name: self._loss_of(name, number) for number, name in enumerate(flat)}
        # A loss of the model's own may take labels of all outputs.
        of_all = overrides(self.net, COMPUTE_LOSS) and self.net.loss is None
        counted = {name: _labels(loss, flat[name]) for name, loss in losses.items() if of_all or loss is not None}
        return {ONLY: next(iter(counted.values()))} if len(flat) == 1 else counted

    @implements(Objective)
    def require(self, outputs: Any, labels: Mapping[str, InputSpec]) -> None:
        if overrides(self.net, COMPUTE_LOSS):
            return
        for name, needed in self.labels(outputs).items():
            if name in labels and labels[name].shape != needed.shape:
                raise UsageError(f"the labels are {labels[name]}, and the loss of the model needs {needed}")

    @implements(Objective)
    def value(self, variables: Variables, called: Called, labels: Mapping[str, Any]) -> Array:
        net, outputs, added = self.net, called.outputs, list(called.updated.get(ADDED_LOSSES, {}).values())
        trainable, others = self.ordered(variables)
        targets = [labels.get(ONLY if ONLY in labels else name) for name in self._by_name(outputs)]
        structured = keras.tree.pack_sequence_as(outputs, targets)
        weights = called.weights.get(ONLY)
        if called.weights and weights is None:
            weights = keras.tree.pack_sequence_as(
                outputs, [called.weights.get(name) for name in self._by_name(outputs)]
            )
        # Nothing reads the metrics. Their own arrays, which a compiled program closes over and does not use, JAX 0.10
        # leaves out when the program is called again, which fails.
        metrics = [jnp.zeros(variable.shape, variable.value.dtype) for variable in net.metrics_variables]
        # As Keras' own trainer does: the losses that the call added are those that the model has.
        net._losses_override.clear()  # noqa: SLF001
        net._losses_override.extend(added)  # noqa: SLF001
        try:
            value, _ = net.stateless_compute_loss(
                trainable,
                others,
                metrics,
                x=self.given(called.shape, called.inputs),
                y=structured,
                y_pred=outputs,
                sample_weight=weights,
                training=self.train,
            )
        finally:
            net._losses_override.clear()  # noqa: SLF001
        if not isinstance(value, jax.Array):
            raise ModelError("the compiled loss of the model is not a scalar")
        return value

    @implements(Objective)
    def sentence(self, called: Called) -> str:
        weighted = f", weighted by {_WEIGHTS}" if called.weights else ""
        if overrides(self.net, COMPUTE_LOSS):
            return f"{COMPUTE_LOSS} of {type(self.net).__name__}{weighted}{not_run(self.net)}"
        flat = self._by_name(called.outputs)
        losses = {name: self._loss_of(name, number) for number, name in enumerate(flat)}
        counted = [f"{_name(loss)} of {name or 'the output'}" for name, loss in losses.items() if loss is not None]
        added = len(called.updated.get(ADDED_LOSSES, {}))
        words = " and ".join([*counted, *([added_in_words(added)] if added else [])])
        left = [name for name, loss in losses.items() if loss is None]
        return (
            f"compiled{weighted}: {words}" + (f"; not counted: {', '.join(left)}" if left else "") + not_run(self.net)
        )

    def _by_name(self, outputs: Any) -> dict[str, Any]:
        """Returns the outputs by path, those of a functional model's list by the names of their layers."""
        flat = floating_outputs(named_outputs(outputs))
        names: list[str] = getattr(self.net, "output_names", None) or []
        is_list = isinstance(outputs, list | tuple) and len(names) == len(flat)
        return dict(zip(names, flat.values(), strict=True)) if is_list else flat

    def _loss_of(self, name: str, number: int) -> Any:
        """Returns the loss of one output; None where it has none."""
        configured = self.net.loss
        if isinstance(configured, Mapping):
            names = getattr(self.net, "output_names", None)
            only = next(iter(configured.values())) if len(configured) == 1 and not name else None
            return configured.get(name, configured.get(names[number]) if names else only)
        return configured[number] if isinstance(configured, list | tuple) else configured


def overrides(net: Any, method: str) -> bool:
    """Returns whether a model has a method of its own in the place of Keras'."""
    return getattr(type(net), method) is not getattr(keras.Model, method)


def not_run(net: Any) -> str:
    """Returns what of a model's own code `fit` would run, and no loss of the outputs does; "" for nothing."""
    own = overrides(net, "train_step")
    return f"; not run: train_step of {type(net).__name__}, which may have another loss" if own else ""


def _labels(loss: Any, output: Any) -> InputSpec:
    """Returns the labels of an output for its loss, numbers where that is not known."""
    plain = InputSpec.of(output.dtype.name, tuple(output.shape))
    if loss is None:
        return plain
    kind = next((word for word in _LABELS if word in _name(loss)), None)
    if kind == "sparse":
        return InputSpec(
            dtype="int32", shape=plain.shape[:-1], values=InputValues(kind="uniform", numbers=(0, plain.shape[-1]))
        )
    if kind == "categorical":
        return replace(plain, values=InputValues(kind="one-hot", numbers=()))
    if kind is not None:
        return replace(plain, values=InputValues(kind="binary", numbers=()))
    return plain


def _name(loss: Any) -> str:
    """Returns the name of a loss: `sparse_categorical_crossentropy`."""
    found = keras.losses.get(loss)
    return str(getattr(found, "name", None) or getattr(found, "__name__", type(found).__name__))
