"""Layer values are the values and gradients that a dump has for the variables of one layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import numpy as np

from gradscope import naming
from gradscope.arrays.blocks import Array
from gradscope.capturing.isolate.pinned_arguments import PinnedArguments
from gradscope.capturing.isolate.pinned_values import PinnedValues
from gradscope.comparison.pairing.reverse import ReversePairing
from gradscope.instrument.isolating import IsolatedRun
from gradscope.tracing.dataflow.forward import ForwardFlow, FrameVariable
from gradscope.tracing.jaxpr.frames import OPERAND, resolve, variable_of
from gradscope.tracing.jaxpr.iterations import ValueAt, sources, values_at
from gradscope.tracing.jaxpr.jaxcompat import Atom
from gradscope.tracing.layers.parameter_views import ParameterOrigins
from gradscope.tracing.leaves import Leaf
from gradscope.tracing.lookup.layer_call import IsolatedLayer

#: The origin of a value that neither the dump nor the loss's arguments have.
COMPUTED: Final = "computed by the model"

#: What is said of an argument, by where its value comes from.
_ORIGINS: Final = MappingProxyType(
    {"reference": " of the dump", "candidate": " of the model's own dump", "model": ", made by the model"}
)


class LayerValues:
    """`LayerValues` look up the variables of one layer in a dump.

    Args:
        isolated: The layer.
        arguments: The loss that it is part of, with arguments.
        pinned: The values that the dump has for the loss's layers.
        placing: The dump's tensors by the keys of the model.
        loss: The dump's loss; None where it has none.
    """

    def __init__(
        self,
        isolated: IsolatedLayer,
        arguments: PinnedArguments,
        pinned: PinnedValues,
        placing: ReversePairing,
        *,
        loss: float | None,
    ) -> None:
        self._isolated = isolated
        self._arguments = arguments
        self._pinned = pinned
        self._placing = placing
        self._loss = loss
        root = arguments.trace.root
        self._loss_value = resolve(root, root.jaxpr.outvars[0])
        self._frames = {frame.key: frame for frame in arguments.trace.root.walk()}
        params = {at: leaf.name for at, leaf in enumerate(arguments.trace.arguments) if leaf.family == naming.PARAM}
        self._parameters = ParameterOrigins(params)

    def value(self, atom: Atom) -> Array | None:
        """Returns the dump's value of a variable that some layer made; None where it has none."""
        value_at = self._value_at(atom)
        if value_at is not None and value_at.value == self._loss_value and self._loss is not None:
            return np.asarray(self._loss, atom.aval.dtype)
        if value_at is None or value_at not in self._pinned.keys:
            return None
        return np.asarray(self._pinned.arrays[value_at.value].values)[value_at.iteration]

    def name(self, atom: Atom) -> str | None:
        """Returns a variable's path in the dump, or the parameter of which it is a view; None for no name."""
        value_at = self._value_at(atom)
        leaf = self._leaf(value_at)
        if leaf is not None:
            return leaf.name
        if value_at is not None and value_at in self._pinned.keys:
            return naming.split_key(self._pinned.keys[value_at])[1]
        if value_at is not None and value_at.value == self._loss_value:
            return "loss"
        return next(iter(self._parameters.names(self._isolated.layer.frame, atom)), None)

    def origin(self, atom: Atom) -> str:
        """Returns a sentence about where a variable's value comes from."""
        value_at = self._value_at(atom)
        leaf = self._leaf(value_at)
        if leaf is not None:
            key = naming.key_of(leaf.family, leaf.name)
            origin = next(origin for origin, keys in self._arguments.origins.items() if key in keys)
            return f"{key}{_ORIGINS[origin]}"
        if value_at is not None and value_at in self._pinned.keys:
            return f"{self._pinned.keys[value_at]} of the dump"
        viewed = self._parameters.names(self._isolated.layer.frame, atom)
        return "".join(f"the layer's view of param/{name}" for name in viewed) or COMPUTED

    def full_gradient(self, atom: Atom) -> Array | None:
        """Returns the gradient of the loss with respect to a variable; None where the dump does not have it."""
        value_at, at = self._gradient_at(atom)
        if value_at is None:
            return None
        if (leaf := self._leaf(value_at)) is not None:
            found = self._argument_gradient(leaf)
            return None if found is None else found[at]
        if value_at not in self._pinned.with_cotangent:
            return None
        return np.asarray(self._pinned.arrays[value_at.value].cotangents)[value_at.iteration]

    def gradient_in(self, run: IsolatedRun, atom: Atom) -> Array | None:
        """Returns what an isolated run has in place of `full_gradient`; None where it has none."""
        value_at, at = self._gradient_at(atom)
        found = None if value_at is None else run.gradient(value_at)
        return None if found is None else found[at]

    def own_gradient(self, atom: Atom) -> Array | None:
        """Returns the term of a variable's gradient that comes from this layer only; None where the dump lacks it."""
        value_at = self._value_at(atom)
        root, loss = self._arguments.trace.root, self._loss_value
        if value_at is None or loss is None or self._isolated.reads_its_outputs():
            return None
        stacked, at = self._gradient_at(atom)
        if at and stacked is not None and not self._is_read_as_slices(stacked, value_at):
            return None
        boundaries = {*self._pinned.with_cotangent, *self._pinned.without_cotangent, ValueAt(loss, ())}
        # A part of the gradient may arrive by code that the layer reads from, and that is in no layer.
        others = (self._value_at(other) for other in self._isolated.inputs if other is not atom)
        boundaries |= {other for other in others if other is not None and other != value_at}
        readers = self._pinned.segments(root, [value_at]).readers(boundaries)
        return self.full_gradient(atom) if self._is_read_alone(value_at, readers) else None

    def _is_read_alone(self, value_at: ValueAt, readers: Mapping[ValueAt, Sequence[ValueAt]]) -> bool:
        """Returns whether all that is made of a value is made inside the layer, until the layer returns it."""
        seen, waiting = {value_at}, [value_at]
        while waiting:
            found = readers.get(waiting.pop(), [])
            if not all(map(self._isolated.makes, found)):
                return False
            inside = {each for each in found if each.value not in self._isolated.layer.outputs} - seen
            seen |= inside
            waiting += inside
        return bool(readers.get(value_at))

    def _value_at(self, atom: Atom) -> ValueAt | None:
        """Returns a variable's value where it is made: a carry in the iteration before, an argument at the root."""
        value = resolve(self._isolated.layer.frame, atom)
        if value is None:
            return None
        value_at = ValueAt(value, self._isolated.iteration[: len(self._frames[value.frame].loops)])
        while value_at not in self._pinned.keys:
            found = self._of_taken_branch(value_at) or sources(self._frames, value_at)
            found = [each for each in found if self._shape(each) == tuple(atom.aval.shape)]
            if len(found) != 1:
                break
            (value_at,) = found
        return value_at

    def _of_taken_branch(self, value_at: ValueAt) -> list[ValueAt]:
        """Returns what a branch returned of which the dump has values, so that it ran; nothing for no branch."""
        value, iteration = value_at
        for body in self._frames[value.frame].children.get(value.equation, ()):
            ran = (
                each.value.frame[: len(body.key)] == body.key
                for each in self._pinned.keys
                if iteration == each.iteration[: len(iteration)]
            )
            if body.transfer.exclusive and any(ran):
                return list(values_at(body, body.jaxpr.outvars[value.position], iteration))
        return []

    def _shape(self, value_at: ValueAt) -> tuple[int, ...]:
        return tuple(variable_of(self._frames[value_at.value.frame], value_at.value).aval.shape)

    def _argument_gradient(self, leaf: Leaf) -> Array | None:
        key = naming.key_of(naming.gradient_family(leaf.family) or leaf.family, leaf.name)
        return self._placing.array(key) if leaf.differentiated else None

    def _gradient_at(self, atom: Atom) -> tuple[ValueAt | None, tuple[int, ...]]:
        """Returns the value or argument whose gradient has that of a variable, and at which index of it."""
        value_at = self._value_at(atom)
        stack, at = value_at, ()
        while stack is not None and self._leaf(stack) is None:
            stack, at = self._stack_of(stack), (*stack.iteration[-1:], *at)
        return (value_at, ()) if stack is None else (stack, at)

    def _stack_of(self, value_at: ValueAt) -> ValueAt | None:
        """Returns what a loop has taken a value from as a slice; None for any other value."""
        loops = self._frames[value_at.value.frame].loops
        if value_at.value.equation != OPERAND or not loops or len(value_at.iteration) != len(loops):
            return None
        stacked = (loops[-1].length, *self._shape(value_at))
        stacks = [each for each in sources(self._frames, value_at) if self._shape(each) == stacked]
        return stacks[0] if len(stacks) == 1 else None

    def _is_read_as_slices(self, stacked: ValueAt, slices: ValueAt) -> bool:
        """Returns whether nothing reads an argument but loops that take it apart into slices, each of which once."""
        root, sliced = self._arguments.trace.root, self._frames[slices.value.frame]
        variable = FrameVariable(root, variable_of(root, stacked.value))
        flow = ForwardFlow()
        taken = 0
        while variable != FrameVariable(sliced, variable_of(sliced, slices.value)):
            steps = list(flow.steps(variable))
            if len(steps) != 1 or steps[0].way not in ("enter", "slice"):
                return False
            variable, taken = steps[0].to, taken + (steps[0].way == "slice")
        return taken == len(sliced.loops)  # another loop around them reads the same slice in each iteration

    def _leaf(self, value_at: ValueAt | None) -> Leaf | None:
        """Returns the argument that a value is; None for any other."""
        is_argument = value_at is not None and not value_at.value.frame and value_at.value.equation == OPERAND
        return (
            self._arguments.trace.arguments[value_at.value.position] if is_argument and value_at is not None else None
        )
