"""A `ModuleModel` makes the functions of a model from an adapter and the user's options for it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import jax
from jax import Array

from gradscope.errors import UsageError
from gradscope.frameworks.modules.adapter import Adapter, Variables
from gradscope.frameworks.modules.calling import CallShape, call_shape
from gradscope.frameworks.modules.input_spec import InputSpec, examples, with_batch_size
from gradscope.frameworks.modules.objective import DEFAULT_LOSS, ONLY, Called, HasObjective, LossOfOutputs, Objective
from gradscope.frameworks.modules.outputs import named_outputs, updated_leaves
from gradscope.frameworks.modules.random_inputs import narrowed, random_inputs, require_representable
from gradscope.frameworks.modules.request import LossName, Request

#: Name of the labels in a batch: the first of these that is not an input's name.
_LABELS: Final = ("labels", "targets", "loss_labels")

#: Names of the labels in real data.
_LABELS_IN_DATA: Final = ("labels", "label", "targets", "target", "y")

#: What to do about data that do not fit a module.
_NAME_DATA: Final = (
    "a tensor of the data is an input by the name of its parameter, or in the parameters' order; labels are called "
    f"{', '.join(_LABELS_IN_DATA[:-1])} or {_LABELS_IN_DATA[-1]}, and of several outputs labels/OUTPUT"
)

#: Name of the labels in a pair (inputs, labels), whose elements are named by their positions.
_LABELS_OF_PAIR: Final = ("1",)

#: Name of the weights of the examples in a triple (inputs, labels, weights).
_WEIGHTS_OF_TRIPLE: Final = "2"

_POSITIONAL: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleModel:
    """A `ModuleModel` has a module's `init`, `batch` and `loss`.

    Attributes:
        adapter: The module's adapter.
        call: How it is called.
        inputs: Its inputs by name.
        label_name: Name of its labels in a batch.
        weights: The weights of the examples in real data, by name.
        described: The labels that the user describes, by the output that they are for.
        objective: What is made of its outputs.
        train: Whether it runs in training mode.
        counted: What the objective counts, in words; known once the loss is traced.
    """

    adapter: Adapter
    call: CallShape
    inputs: Mapping[str, InputSpec]
    label_name: str
    weights: Mapping[str, InputSpec]
    described: Mapping[str, InputSpec]
    objective: Objective
    train: bool
    counted: list[str] = field(default_factory=list[str])

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
        described: Mapping[str, InputSpec] = {}
        objective = _objective(adapter, request.loss)
        weights: Mapping[str, InputSpec] = {}
        if request.data and not request.inputs:
            call, inputs, label_name, weights = _call_on_data(adapter, request.data, objective.weights, train=train)
        else:
            specs, labels = _without_labels(adapter, request.inputs)
            specs = with_batch_size(specs or adapter.inputs, request.batch_size)
            call, inputs = _call(adapter, specs, train=train)
            label_name = next(name for name in _LABELS if name not in inputs)
            for spec in (*specs, *labels):
                require_representable(spec)
            described = {str(spec.name).partition("/")[2]: spec for spec in labels}
        return cls(
            adapter=adapter, call=call, inputs=inputs, label_name=label_name, weights=weights,
            described=described, objective=objective, train=train,
        )  # fmt: skip

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
            f"its loss is {self.objective.name}",
        )

    def init(self, key: Array) -> Variables:
        """Returns the module's variables."""
        return self.adapter.init(key, self.call, random_inputs(key, self.inputs))

    def random_batch(self, key: Array, size: int) -> dict[str, Array]:
        """Returns random inputs and labels for a number of examples."""
        inputs_key, labels_key = jax.random.split(key)
        specs = dict(zip(self.inputs, with_batch_size(list(self.inputs.values()), size), strict=True))
        inputs = random_inputs(inputs_key, specs)
        labels: dict[str, InputSpec] = {}

        def find_labels() -> None:  # traced and not run: the labels need the outputs' shapes alone
            outputs, _ = self.adapter.apply(self.init(key), self.call, inputs)
            labels.update(self._labels(outputs, size))

        jax.eval_shape(find_labels)
        weights = zip(self.weights, with_batch_size(list(self.weights.values()), size), strict=True)
        return inputs | random_inputs(labels_key, labels | dict(weights))

    def loss(self, variables: Variables, batch: Mapping[str, Any]) -> tuple[Array, dict[str, Any]]:
        """Returns the loss, with the updated collections and the outputs as auxiliary outputs."""
        inputs = {name: batch[name] for name in self.inputs}
        outputs, updated = self.adapter.apply(variables, self.call, inputs)
        weights = {_output_of(name): batch[name] for name in self.weights}
        beside = (name for name in batch if name not in self.inputs and name not in self.weights)
        labels = {_output_of(name): batch[name] for name in beside}
        called = Called(shape=self.call, inputs=inputs, outputs=outputs, updated=updated, weights=weights)
        with jax.named_scope("loss"):
            value = self.objective.value(variables, called, labels)
        self.counted[:] = [self.objective.sentence(called)]
        return value, {**updated_leaves(updated, variables), "output": named_outputs(outputs)}

    def _labels(self, outputs: Any, size: int) -> dict[str, InputSpec]:
        """Returns the labels of a batch by name, those that the user describes as described."""
        needed = dict(self.objective.labels(outputs))
        unknown = [str(spec.name) for name, spec in self.described.items() if name not in needed]
        if unknown:
            known = ", ".join(self._label(name) for name in needed) or "none"
            raise UsageError(f"the loss has no labels {unknown[0]}, it has {known}")
        described = dict(zip(self.described, _with_examples(self.described.values(), size), strict=True))
        self.objective.require(outputs, described)
        return {self._label(name): spec for name, spec in (needed | described).items()}

    def _label(self, output: str) -> str:
        return self.label_name if output == ONLY else f"{self.label_name}/{output}"

    def inputs_like(self) -> dict[str, Array]:
        """Returns random inputs of the described shapes."""
        return random_inputs(jax.random.key(0), self.inputs)

    def outputs(self, variables: Variables, inputs: Mapping[str, Any]) -> tuple[Any, Variables]:
        """Returns the module's outputs, by name, and the collections that it updated."""
        outputs, updated = self.adapter.apply(variables, self.call, inputs)
        return named_outputs(outputs), updated


def _output_of(name: str) -> str:
    """Returns the output that labels or weights are for; `ONLY` for those of the only output, or of all."""
    return name.partition("/")[2]


def _objective(adapter: Adapter, loss: LossName | None) -> Objective:
    if isinstance(adapter, HasObjective):
        return adapter.objective(loss)
    return LossOfOutputs(name=loss or DEFAULT_LOSS)


def _without_labels(
    adapter: Adapter, specs: Sequence[InputSpec]
) -> tuple[tuple[InputSpec, ...], tuple[InputSpec, ...]]:
    """Returns the inputs among the specs, and the labels: those of that name, which the module does not take itself."""
    taken = adapter.signature.parameters.keys()
    labels = {spec for spec in specs if str(spec.name).partition("/")[0] == _LABELS[0] and _LABELS[0] not in taken}
    return tuple(spec for spec in specs if spec not in labels), tuple(spec for spec in specs if spec in labels)


def _with_examples(specs: Iterable[InputSpec], size: int) -> list[InputSpec]:
    return [replace(spec, shape=(size, *spec.shape[1:])) if spec.shape else spec for spec in specs]


def _call(
    adapter: Adapter, specs: Sequence[InputSpec], *, train: bool, **said: Any
) -> tuple[CallShape, dict[str, InputSpec]]:
    return call_shape(adapter.module, adapter.signature, specs, train=train, supplied=adapter.supplied, **said)


def _call_on_data(
    adapter: Adapter, data: Mapping[str, InputSpec], weight_name: str, *, train: bool
) -> tuple[CallShape, dict[str, InputSpec], str, dict[str, InputSpec]]:
    """Returns how a module is called on real data, inputs by name, the name of the labels, and weights by name.

    The tensors keep their names. A tensor goes to the parameter of its name; those without one fill the parameters in
    their order.

    Args:
        adapter: The module's adapter.
        data: The tensors of the data.
        weight_name: The name of weights of the examples; "" where the loss takes none.
        train: Whether the module runs in training mode.
    """
    parameters = adapter.signature.parameters.keys() - adapter.supplied
    outermost = {name.partition("/")[0] for name in data}
    if weight_name and outermost == {"0", *_LABELS_OF_PAIR, _WEIGHTS_OF_TRIPLE} and _needed(adapter) < 2:
        weight_name, known_as_labels = _WEIGHTS_OF_TRIPLE, _LABELS_OF_PAIR
    else:
        known_as_labels = _LABELS_OF_PAIR if _is_pair(adapter, data) else _LABELS_IN_DATA
    label_name = next((name for name in known_as_labels if name in outermost and name not in parameters), _LABELS[0])
    weighing = {weight_name} - parameters - {label_name}
    weights = {name: narrowed(spec) for name, spec in data.items() if name.partition("/")[0] in weighing}
    beside = {label_name, *weighing}
    tensors = {name: spec for name, spec in data.items() if name.partition("/")[0] not in beside}
    known = {name: name.partition("/")[0] in parameters for name in tensors}
    specs = [narrowed(replace(spec, name=name if known[name] else None)) for name, spec in tensors.items()]
    given = [replace(spec, name=name) for name, spec in tensors.items()]
    call, inputs = _call(adapter, specs, train=train, given=given, hint=_NAME_DATA)
    renamed = dict(zip(call.positional, (name for name in tensors if not known[name]), strict=True))
    named = {renamed.get(name, name): spec for name, spec in inputs.items()}
    return replace(call, positional=tuple(renamed.values())), named, label_name, weights


def _is_pair(adapter: Adapter, data: Mapping[str, InputSpec]) -> bool:
    """Returns whether data are a pair of inputs and labels, and not two inputs of a module that needs both."""
    if {name.partition("/")[0] for name in data} != {"0", *_LABELS_OF_PAIR}:
        return False
    return _needed(adapter) < 2 or len(data) > 2


def _needed(adapter: Adapter) -> int:
    """Returns how many inputs a module needs by position."""
    parameters = [each for name, each in adapter.signature.parameters.items() if name not in adapter.supplied]
    return sum(each.default is each.empty and each.kind in _POSITIONAL for each in parameters)
