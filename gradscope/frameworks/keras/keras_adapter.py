"""The adapter of Keras 3 on JAX: models that carry their variables and run without changing them, by `stateless_call`.

Scopes are Keras' own, one per layer, without one for the model. Variables are named by their paths, `conv1/kernel`.

Sharp edges: Keras selects its backend when it is imported; gradscope sets it to JAX where the environment does not set
it. Keras draws initial weights from Python's own generator, which `--seed` seeds before the target is imported. A
subclassed model that was never called has no variables: it is called once, on the inputs of `--input`.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import keras
from jax import Array

from gradscope.errors import UsageError
from gradscope.frameworks.keras.weight_files import FULL_MODEL, WEIGHTS, KerasFormat
from gradscope.frameworks.modules.adapter import PARAMS, Variables
from gradscope.frameworks.modules.calling import CallShape, without
from gradscope.frameworks.modules.input_spec import InputSpec

_NON_TRAINABLE: Final = "non_trainable"

#: Number of examples where a model determines everything else about its inputs.
_EXAMPLES: Final = 8

#: The parameter of `call` that Keras itself passes.
_MASK: Final = "mask"


@dataclass(frozen=True, slots=True, kw_only=True)
class KerasAdapter:
    """A `KerasAdapter` adapts a Keras model."""

    net: Any
    framework: str = "Keras"
    supplied: Collection[str] = ()
    initialised: bool = True

    @property
    def module(self) -> str:
        """The model's name."""
        return self.net.name

    @property
    def signature(self) -> inspect.Signature:
        """The signature of `call`, or the inputs of a functional model by name."""
        own = without(inspect.signature(self.net.call), (_MASK,))
        if not self._symbolic:
            return own
        named = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in self._names]
        return inspect.Signature([*named, inspect.Parameter("training", inspect.Parameter.KEYWORD_ONLY, default=None)])

    @property
    def inputs(self) -> tuple[InputSpec, ...]:
        """The inputs of a functional model that fixes all axes but the examples'; empty for others."""
        if not self._symbolic or any(None in tensor.shape[1:] for tensor in self._symbolic):
            return ()
        return tuple(
            InputSpec.of(
                keras.backend.standardize_dtype(tensor.dtype), (tensor.shape[0] or _EXAMPLES, *tensor.shape[1:])
            )
            for tensor in self._symbolic
        )

    def init(self, key: Array, call: CallShape, inputs: Mapping[str, Any]) -> Variables:  # noqa: ARG002 - they exist already
        """Returns the model's variables, trainable ones and others, by path."""
        if not self.net.built:
            positional, keyword = call.arguments(inputs)
            self.net(*positional, **keyword)
        trainable, others = self._variables
        collections = {PARAMS: trainable, _NON_TRAINABLE: others}
        return {
            name: {path: variable.value for path, variable in variables.items()}
            for name, variables in collections.items()
            if variables or name == PARAMS
        }

    def apply(self, variables: Variables, call: CallShape, inputs: Mapping[str, Any]) -> tuple[Any, Variables]:
        """Returns outputs and updated variables that are not trainable."""
        trainable, others = self._variables
        positional, keyword = call.arguments(inputs)
        outputs, updated = self.net.stateless_call(
            [variables[PARAMS][path] for path in trainable],
            [variables[_NON_TRAINABLE][path] for path in others],
            *self._structured(positional, keyword),
            **keyword,
        )
        return outputs, {_NON_TRAINABLE: dict(zip(others, updated, strict=True))}

    def _structured(self, positional: tuple[Any, ...], keyword: dict[str, Any]) -> tuple[Any, ...]:
        """Returns a functional model's inputs as one argument of the structure with which it was built."""
        if not self._symbolic:
            return positional
        values = [*positional, *(keyword.pop(name) for name in self._names[len(positional) :])]
        structure = getattr(self.net, "input", values[0])  # a sequential model has one input and no structure
        return (keras.tree.pack_sequence_as(structure, values),)

    @property
    def _symbolic(self) -> list[Any]:
        """The symbolic inputs of a functional model, flat; empty for a subclassed one."""
        return list(getattr(self.net, "inputs", None) or ())

    @property
    def _names(self) -> list[str]:
        if len(self._symbolic) == 1:
            return ["inputs"]
        return [tensor.name for tensor in self._symbolic]

    @property
    def _variables(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return _by_path(self.net.trainable_variables), _by_path(self.net.non_trainable_variables)


def adapt(found: Any, *, train: bool) -> KerasAdapter | None:  # noqa: ARG001 - a Keras model receives the mode when it is called
    """Returns the adapter of a Keras model; None for another object.

    Raises:
        UsageError: Keras runs on another backend.
    """
    if not isinstance(found, keras.Model):
        return None
    if keras.backend.backend() != "jax":
        raise UsageError(f"Keras runs on {keras.backend.backend()} here", hint="set KERAS_BACKEND=jax")
    return KerasAdapter(net=found)


def own_format(found: Any, checkpoint: Path) -> KerasFormat | None:
    """Returns the reader of a file of weights or of a full model for a Keras model; None for another file or object."""
    if not (isinstance(found, keras.Model) and checkpoint.name.endswith((WEIGHTS, FULL_MODEL))):
        return None
    return KerasFormat(model=found, checkpoint=checkpoint)


def builder(found: Any, *, seed: int) -> Callable[..., Any] | None:  # noqa: ARG001 - Keras is seeded globally
    """Returns a class of Keras models itself; None for another object."""
    return found if isinstance(found, type) and issubclass(found, keras.Model) else None


def _by_path(variables: Iterable[Any]) -> dict[str, Any]:
    """Returns variables by path; a second variable of the same path is `path_2`, as Keras itself names layers."""
    seen: Counter[str] = Counter()
    found: dict[str, Any] = {}
    for variable in variables:
        seen[variable.path] += 1
        count = seen[variable.path]
        found[variable.path if count == 1 else f"{variable.path}_{count}"] = variable
    return found
