"""The adapter of Keras 3 on JAX runs models, which carry their variables, without changing them (`stateless_call`).

Scopes are Keras' own, one per layer. Variables are named by their paths, `conv1/kernel`. Where these begin with the
model's name, as those of a sequential or subclassed model do, a scope is opened for the model, too; and the variables
of a model inside a functional one are named below it, as its layers are.

Sharp edges: Keras selects its backend when it is imported; gradscope sets it to JAX where the environment does not set
it. Keras draws initial weights from Python's own generator, which `--seed` seeds before the target is imported. A
subclassed model that was never called has no variables: it is called once, on the inputs of `--input`.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import jax
import keras
from jax import Array

from gradscope.errors import UsageError
from gradscope.frameworks.keras.own_loss import COMPUTE_LOSS, CompiledLoss, not_run, overrides
from gradscope.frameworks.keras.weight_files import FULL_MODEL, WEIGHTS, KerasFormat
from gradscope.frameworks.modules.adapter import PARAMS, Variables
from gradscope.frameworks.modules.calling import CallShape, without
from gradscope.frameworks.modules.input_spec import InputSpec
from gradscope.frameworks.modules.objective import ADDED_LOSSES, DEFAULT_LOSS, LossOfOutputs, Objective
from gradscope.frameworks.modules.request import LossName

_NON_TRAINABLE: Final = "non_trainable"

#: Number of examples where a model determines everything else about its inputs.
_EXAMPLES: Final = 8

#: The parameter of `call` that Keras itself passes.
_MASK: Final = "mask"


@dataclass(frozen=True, slots=True, kw_only=True)
class KerasAdapter:
    """A `KerasAdapter` adapts a Keras model."""

    net: Any
    train: bool
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
        if not _is_built(self.net):
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
        positional, keyword = call.arguments(inputs)
        with self._scope():
            outputs, updated, added = self.net.stateless_call(
                *self._ordered(variables), *self._structured(positional, keyword), return_losses=True, **keyword
            )
        _, others = self._variables
        losses = {ADDED_LOSSES: {str(number): loss for number, loss in enumerate(added)}} if added else {}
        return outputs, {_NON_TRAINABLE: dict(zip(others, updated, strict=True)), **losses}

    def objective(self, loss: LossName | None) -> Objective:
        """Returns what the model's `fit` would minimise, or the loss that the user chooses, of all outputs."""
        own = self.net.compiled and (self.net.loss is not None or overrides(self.net, COMPUTE_LOSS))
        if loss is None and own:
            return CompiledLoss(net=self.net, train=self.train, ordered=self._ordered, given=self._given)
        not_run_here = not_run(self.net) if loss is None else ""
        return LossOfOutputs(name=loss or DEFAULT_LOSS, every=True, adds=loss is None, not_run=not_run_here)

    @contextmanager
    def _scope(self) -> Generator[None]:
        """Opens a scope for the model where the paths of its variables begin with its name."""
        if not self._own_prefix:
            yield
            return
        with jax.named_scope(self.net.name):
            yield

    @property
    def _own_prefix(self) -> str:
        """The model's name and a slash where paths of its variables begin with them; "" for another model."""
        prefix = f"{self.net.name}/"
        return prefix if any(variable.path.startswith(prefix) for variable in self.net.variables) else ""

    def _structured(self, positional: tuple[Any, ...], keyword: dict[str, Any]) -> tuple[Any, ...]:
        """Returns a functional model's inputs as one argument of the structure with which it was built."""
        if not self._symbolic:
            return positional
        values = [*positional, *(keyword.pop(name) for name in self._names[len(positional) :])]
        structure = getattr(self.net, "input", values[0])  # a sequential model has one input and no structure
        return (keras.tree.pack_sequence_as(structure, values),)

    def _given(self, call: CallShape, inputs: Mapping[str, Any]) -> Any:
        """Returns the inputs of a call as `fit` has them: one tensor, or the structure of a functional model."""
        positional, keyword = call.arguments(inputs)
        named = {name: each for name, each in keyword.items() if name not in call.flags}
        found = [*self._structured(positional, named), *named.values()]
        return found[0] if len(found) == 1 else found

    @property
    def _symbolic(self) -> list[Any]:
        """The symbolic inputs of a functional model, flat; empty for a subclassed one."""
        return list(getattr(self.net, "inputs", None) or ())

    @property
    def _names(self) -> list[str]:
        if len(self._symbolic) == 1:
            return ["inputs"]
        return [tensor.name for tensor in self._symbolic]

    def _ordered(self, variables: Variables) -> tuple[list[Any], list[Any]]:
        """Returns the values of trainable and other variables, in Keras' order."""
        trainable, others = self._variables
        return (
            [variables[PARAMS][path] for path in trainable],
            [variables[_NON_TRAINABLE][path] for path in others],
        )

    @property
    def _variables(self) -> tuple[dict[str, Any], dict[str, Any]]:
        inner = _paths_inside(self.net, self._own_prefix)
        return _by_path(self.net.trainable_variables, inner), _by_path(self.net.non_trainable_variables, inner)


def adapt(found: Any, *, train: bool) -> KerasAdapter | None:
    """Returns the adapter of a Keras model; None for another object.

    Raises:
        UsageError: Keras runs on another backend.
    """
    if not isinstance(found, keras.Model):
        return None
    if keras.backend.backend() != "jax":
        raise UsageError(f"Keras runs on {keras.backend.backend()} here", hint="set KERAS_BACKEND=jax")
    return KerasAdapter(net=found, train=train)


def own_format(found: Any, checkpoint: Path) -> KerasFormat | None:
    """Returns the reader of a file of weights or of a full model for a Keras model; None for another file or object."""
    if not (isinstance(found, keras.Model) and checkpoint.name.endswith((WEIGHTS, FULL_MODEL))):
        return None
    return KerasFormat(model=found, checkpoint=checkpoint)


def builder(found: Any, *, seed: int) -> Callable[..., Any] | None:  # noqa: ARG001 - Keras is seeded globally
    """Returns a class of Keras models itself; None for another object."""
    return found if isinstance(found, type) and issubclass(found, keras.Model) else None


def _is_built(net: Any) -> bool:
    """Returns whether a model and all layers in it have their variables.

    `build` of a subclassed model without one of its own builds no layer, and still marks the model as built.
    """
    layers = getattr(net, "_flatten_layers", lambda: [net])  # Keras has no public list of the layers inside layers
    return all(layer.built for layer in layers())


def _paths_inside(net: Any, prefix: str) -> dict[int, str]:
    """Returns paths of the variables of models inside a model, by the variables' identities."""
    found: dict[int, str] = {}
    for model in net.layers:
        if isinstance(model, keras.Model):
            inside = f"{prefix}{model.name}/"
            own = {id(each): f"{inside}{_below(each.path, model.name)}" for each in model.variables}
            found = own | _paths_inside(model, inside) | found
    return found


def _below(path: str, name: str) -> str:
    """Returns the part of a path after a component of that name; the path itself where it has none."""
    parts = path.split("/")
    return "/".join(parts[parts.index(name) + 1 :]) if name in parts[:-1] else path


def _by_path(variables: Iterable[Any], inner: Mapping[int, str]) -> dict[str, Any]:
    """Returns variables by path; a second variable of the same path is `path_2`, as Keras itself names layers.

    Args:
        variables: The variables.
        inner: The paths of those that are in a model inside the model.
    """
    seen: Counter[str] = Counter()
    found: dict[str, Any] = {}
    for variable in variables:
        path = inner.get(id(variable), variable.path)
        seen[path] += 1
        found[path if seen[path] == 1 else f"{path}_{seen[path]}"] = variable
    return found
