"""Objectives are what is differentiated: a loss of a module's outputs, with labels, or the loss that a module has.

An objective states in words what it counts of the outputs, and what it leaves out: two losses of one module that count
different things would look alike otherwise.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax import Array

from gradscope.frameworks.modules.adapter import Variables
from gradscope.frameworks.modules.calling import CallShape
from gradscope.frameworks.modules.input_spec import InputSpec
from gradscope.frameworks.modules.losses import counted_outputs, labels_spec, loss_value, require_labels
from gradscope.frameworks.modules.outputs import floating_outputs, named_outputs
from gradscope.frameworks.modules.request import LossName
from gradscope.protocols import implements

#: Works for outputs of any kind. A mean or a sum does not: for the output of a normalising layer it is constant.
DEFAULT_LOSS: Final[LossName] = "mse"

#: The collection of losses that a module adds to that of its outputs, among those that its call updates.
ADDED_LOSSES: Final = "added_losses"

#: The collection in which modules of Flax leave losses for the training loop to add, as `sow("losses", ...)` does.
_SOWN_LOSSES: Final = "losses"

#: The name of the only labels, among labels by output.
ONLY: Final = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Called:
    """`Called` is a call of a module.

    Attributes:
        shape: How it was called.
        inputs: Its inputs, by name.
        outputs: What it returned.
        updated: The collections that it updated.
        weights: The weights of the examples, by output; `ONLY` names those of all outputs.
    """

    shape: CallShape
    inputs: Mapping[str, Any]
    outputs: Any
    updated: Variables
    weights: Mapping[str, Any]


class Objective(Protocol):
    """An `Objective` makes a scalar of what a module returns."""

    @property
    def name(self) -> str:
        """The objective's name."""
        ...

    @property
    def weights(self) -> str:
        """The name of weights of the examples in real data; "" where it takes none."""
        ...

    def labels(self, outputs: Any) -> Mapping[str, InputSpec]:
        """Returns the labels that it needs, by the output that they are for; `ONLY` names those of the only output.

        Args:
            outputs: What the module returns, or the shapes of that.
        """
        ...

    def require(self, outputs: Any, labels: Mapping[str, InputSpec]) -> None:
        """Raises an error for labels that the user describes and that do not fit.

        Raises:
            UsageError: They do not fit the outputs.
        """
        ...

    def value(self, variables: Variables, called: Called, labels: Mapping[str, Any]) -> Array:
        """Returns the scalar.

        Args:
            variables: The module's variables.
            called: Its call.
            labels: The labels, by output.
        """
        ...

    def sentence(self, called: Called) -> str:
        """Returns what is counted of a call, in words."""
        ...


@runtime_checkable
class HasObjective(Protocol):
    """`HasObjective` are adapters whose modules have an objective of their own."""

    def objective(self, loss: LossName | None) -> Objective:
        """Returns the objective for the loss that the user chooses; None for the module's own."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LossOfOutputs:
    """A `LossOfOutputs` is a loss that `--loss` names, of a module's outputs.

    Attributes:
        name: The loss.
        every: Whether it is summed over all outputs where none is called `logits`. Otherwise it is that of the output
            of that name, or of the first one; `sum` and `mean` are always of all outputs.
        adds: Whether the losses that the module itself adds are added.
        not_run: What of the module's own code, that may have another loss, is not run, in words; "" for nothing.
    """

    name: LossName
    every: bool = False
    adds: bool = False
    not_run: str = ""

    @property
    def weights(self) -> str:
        """There are none."""
        return ""

    @implements(Objective)
    def labels(self, outputs: Any) -> Mapping[str, InputSpec]:
        counted = self._counted(outputs)
        found = {path: labels_spec(self.name, each) for path, each in counted.items()}
        specs = {path: spec for path, spec in found.items() if spec is not None}
        return {ONLY: next(iter(specs.values()))} if len(specs) == 1 else specs

    @implements(Objective)
    def require(self, outputs: Any, labels: Mapping[str, InputSpec]) -> None:
        counted = self._counted(outputs)
        for name, spec in labels.items():
            require_labels(self.name, next(iter(counted.values())) if name == ONLY else counted[name], spec)

    @implements(Objective)
    def value(self, variables: Variables, called: Called, labels: Mapping[str, Any]) -> Array:  # noqa: ARG002
        counted = self._counted(called.outputs)
        if self.name in ("sum", "mean"):
            values = [loss_value(self.name, named_outputs(called.outputs), None)]
        else:
            targets = labels.values() if ONLY in labels else (labels[path] for path in counted)
            values = [loss_value(self.name, each, one) for each, one in zip(counted.values(), targets, strict=True)]
        return total([*values, *(called.updated.get(ADDED_LOSSES, {}).values() if self.adds else ())])

    @implements(Objective)
    def sentence(self, called: Called) -> str:
        everything, counted = floating_outputs(named_outputs(called.outputs)), self._counted(called.outputs)
        added = len(called.updated.get(ADDED_LOSSES, {}))
        left = [path for path in everything if path not in counted]
        left += [added_in_words(added)] * bool(added and not self.adds)
        left += _sown(called.updated.get(_SOWN_LOSSES, {}))
        words = " and ".join(path or "the output" for path in counted)
        words += f" and {added_in_words(added)}" if added and self.adds else ""
        return f"{self.name} of {words}" + (f"; not counted: {', '.join(left)}" if left else "") + self.not_run

    def _counted(self, outputs: Any) -> dict[str, Any]:
        named = named_outputs(outputs)
        return floating_outputs(named) if self.name in ("sum", "mean") else counted_outputs(named, every=self.every)


def added_in_words(count: int) -> str:
    """Returns the losses that a module adds, in words."""
    return "1 loss that the model adds" if count == 1 else f"{count} losses that the model adds"


def _sown(losses: Mapping[str, Any]) -> list[str]:
    """Returns the losses that the modules of a model sow, in words; all that one module sows under one name are one."""
    flat = jax.tree_util.tree_leaves_with_path(losses, is_leaf=lambda each: not isinstance(each, Mapping))
    paths = [f"{_SOWN_LOSSES}/{jax.tree_util.keystr(path, simple=True, separator='/')}" for path, _ in flat]
    return (
        [f"{len(paths)} losses that are sown, as {paths[0]}"]
        if len(paths) > 1
        else [f"{path}, which is sown" for path in paths]
    )


def total(values: Sequence[Array]) -> Array:
    """Returns the sum of scalars, in the widest of their dtypes."""
    widest = jnp.result_type(*values)
    return functools.reduce(jnp.add, (each.astype(widest) for each in values))
