"""A `ModuleModel` makes the functions of a model from an adapter and the user's options for it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import jax
from jax import Array

from gradscope.frameworks.modules.adapter import Adapter, Variables
from gradscope.frameworks.modules.calling import CallShape, call_shape
from gradscope.frameworks.modules.input_spec import InputSpec, examples, with_batch_size
from gradscope.frameworks.modules.losses import labels_spec, loss_value
from gradscope.frameworks.modules.outputs import named_outputs, updated_leaves
from gradscope.frameworks.modules.random_inputs import narrowed, random_inputs, require_representable
from gradscope.frameworks.modules.request import LossName, Request

#: Works for outputs of any kind. A mean or a sum does not: for the output of a normalising layer it is constant.
DEFAULT_LOSS: Final[LossName] = "mse"

#: Name of the labels in a batch: the first of these that is not an input's name.
_LABELS: Final = ("labels", "targets", "loss_labels")

#: Names of the labels in real data.
_LABELS_IN_DATA: Final = ("labels", "label", "targets", "target", "y")

#: Name of the labels in a pair (inputs, labels), whose elements are named by their positions.
_LABELS_OF_PAIR: Final = ("1",)

_POSITIONAL: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleModel:
    """A `ModuleModel` has a module's `init`, `batch` and `loss`.

    Attributes:
        adapter: The module's adapter.
        call: How it is called.
        inputs: Its inputs by name.
        label_name: Name of its labels in a batch.
        loss_name: Name of its loss.
        train: Whether it runs in training mode.
    """

    adapter: Adapter
    call: CallShape
    inputs: Mapping[str, InputSpec]
    label_name: str
    loss_name: LossName
    train: bool

    @classmethod
    def of(cls, adapter: Adapter, request: Request, *, train: bool) -> ModuleModel:
        """Returns the model for the user's options.

        Args:
            adapter: The module's adapter.
            request: The user's options.
            train: Whether it runs in training mode.

        Returns:
            The model.

        Raises:
            UsageError: The inputs do not fit the module.
        """
        if request.data and not request.inputs:
            call, inputs, label_name = _call_on_data(adapter, request.data, train=train)
        else:
            specs = with_batch_size(request.inputs or adapter.inputs, request.batch_size)
            call, inputs = _call(adapter, specs, train=train)
            label_name = next(name for name in _LABELS if name not in inputs)
            for spec in specs:
                require_representable(spec)
        loss_name = request.loss or DEFAULT_LOSS
        return cls(adapter=adapter, call=call, inputs=inputs, label_name=label_name, loss_name=loss_name, train=train)

    @property
    def batch(self) -> Callable[[Array, int], dict[str, Array]]:
        """The function `batch(key, size)`; the default size is that of the described inputs."""

        def batch(key: Array, size: int = examples(list(self.inputs.values())) or 1) -> dict[str, Array]:
            return self.random_batch(key, size)

        return batch

    @property
    def choices(self) -> tuple[str, ...]:
        """Sentences about what was chosen."""
        inputs = ", ".join(f"{name} {spec.dtype}{list(spec.shape)}" for name, spec in self.inputs.items())
        mode = "training" if self.train else "evaluating"
        flags = "".join(f", {name}={value}" for name, value in self.call.flags.items())
        return (
            f"{self.adapter.module} is a module of {self.adapter.framework}, {mode}{flags}",
            f"its inputs are {inputs}",
            f"its loss is {self.loss_name}",
        )

    def init(self, key: Array) -> Variables:
        """Returns the module's variables."""
        return self.adapter.init(key, self.call, random_inputs(key, self.inputs))

    def random_batch(self, key: Array, size: int) -> dict[str, Array]:
        """Returns random inputs and labels for a number of examples."""
        inputs_key, labels_key = jax.random.split(key)
        specs = dict(zip(self.inputs, with_batch_size(list(self.inputs.values()), size), strict=True))
        inputs = random_inputs(inputs_key, specs)
        labels = labels_spec(self.loss_name, jax.eval_shape(lambda: self.outputs(self.init(key), inputs)[0]))
        return inputs if labels is None else {**inputs, **random_inputs(labels_key, {self.label_name: labels})}

    def loss(self, variables: Variables, batch: Mapping[str, Any]) -> tuple[Array, dict[str, Any]]:
        """Returns the loss, with the updated collections and the outputs as auxiliary outputs."""
        outputs, updated = self.outputs(variables, {name: batch[name] for name in self.inputs})
        value = loss_value(self.loss_name, outputs, batch.get(self.label_name))
        return value, {**updated_leaves(updated, variables), "output": outputs}

    def inputs_like(self) -> dict[str, Array]:
        """Returns random inputs of the described shapes."""
        return random_inputs(jax.random.key(0), self.inputs)

    def outputs(self, variables: Variables, inputs: Mapping[str, Any]) -> tuple[Any, Variables]:
        """Returns the module's outputs, by name, and the collections that it updated."""
        outputs, updated = self.adapter.apply(variables, self.call, inputs)
        return named_outputs(outputs), updated


def _call(adapter: Adapter, specs: Sequence[InputSpec], *, train: bool) -> tuple[CallShape, dict[str, InputSpec]]:
    return call_shape(adapter.module, adapter.signature, specs, train=train, supplied=adapter.supplied)


def _call_on_data(
    adapter: Adapter, data: Mapping[str, InputSpec], *, train: bool
) -> tuple[CallShape, dict[str, InputSpec], str]:
    """Returns how a module is called on the tensors of real data, the inputs by name, and the name of the labels.

    The tensors keep their names. A tensor goes to the parameter of its name; those without one fill the parameters in
    their order.
    """
    parameters = adapter.signature.parameters.keys() - adapter.supplied
    known_as_labels = _LABELS_OF_PAIR if _is_pair(adapter, data) else _LABELS_IN_DATA
    label_name = next((name for name in known_as_labels if name in data and name not in parameters), _LABELS[0])
    tensors = {name: spec for name, spec in data.items() if name != label_name}
    known = {name: name.partition("/")[0] in parameters for name in tensors}
    specs = [narrowed(replace(spec, name=name if known[name] else None)) for name, spec in tensors.items()]
    call, inputs = _call(adapter, specs, train=train)
    renamed = dict(zip(call.positional, (name for name in tensors if not known[name]), strict=True))
    named = {renamed.get(name, name): spec for name, spec in inputs.items()}
    return replace(call, positional=tuple(renamed.values())), named, label_name


def _is_pair(adapter: Adapter, data: Mapping[str, InputSpec]) -> bool:
    """Returns whether data are a pair of inputs and labels, and not two inputs of a module that needs both."""
    if {name.partition("/")[0] for name in data} != {"0", "1"}:
        return False
    parameters = [each for name, each in adapter.signature.parameters.items() if name not in adapter.supplied]
    return sum(each.default is each.empty and each.kind in _POSITIONAL for each in parameters) < 2 or len(data) > 2
