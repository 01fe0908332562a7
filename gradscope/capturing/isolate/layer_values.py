"""What a dump has for the values that one layer reads and hands on, and for their gradients."""

from __future__ import annotations

import numpy as np

from gradscope import naming
from gradscope.arrays.blocks import Array
from gradscope.capturing.isolate.pinned_arguments import GivenArguments
from gradscope.capturing.isolate.pinned_values import HeldValues
from gradscope.dump.interfaces import DumpSource
from gradscope.tracing.dataflow.between_known_values import Pieces
from gradscope.tracing.jaxpr.frames import OPERAND, resolve, variable_of
from gradscope.tracing.jaxpr.iterations import Moment, sources
from gradscope.tracing.jaxpr.jaxcompat import Atom
from gradscope.tracing.layers.parameter_views import ParameterOrigins
from gradscope.tracing.lookup.layer_call import LayerAlone
from gradscope.tracing.tracer import Leaf


class LayerValues:
    """Answers for the variables of one layer.

    Args:
        alone: The layer.
        given: The loss that it is part of, with arguments.
        held: What the dump has for the loss's layers.
        dump: The dump.
    """

    def __init__(self, alone: LayerAlone, given: GivenArguments, held: HeldValues, dump: DumpSource) -> None:
        self._alone = alone
        self._given = given
        self._held = held
        self._dump = dump
        self._frames = {frame.key: frame for frame in given.trace.root.walk()}
        params = {at: leaf.name for at, leaf in enumerate(given.trace.arguments) if leaf.family == naming.PARAM}
        self._parameters = ParameterOrigins(params)

    def value(self, atom: Atom) -> Array | None:
        """What the dump has for a variable that some layer made; None where it has nothing."""
        moment = self._moment(atom)
        if moment is None or moment not in self._held.keys:
            return None
        return np.asarray(self._held.held[moment.value].values)[moment.turn]

    def name(self, atom: Atom) -> str | None:
        """What the dump calls a variable, as a path, or the parameter that it is a view of; None for no name."""
        moment = self._moment(atom)
        leaf = self._leaf(moment)
        if leaf is not None:
            return leaf.name
        if moment is not None and moment in self._held.keys:
            return naming.split_key(self._held.keys[moment])[1]
        return next(iter(self._parameters.names(self._alone.layer.frame, atom)), None)

    def origin(self, atom: Atom) -> str:
        """Where a variable's value is from, in words."""
        moment = self._moment(atom)
        leaf = self._leaf(moment)
        if leaf is not None:
            key = naming.key_of(leaf.family, leaf.name)
            return f"{key} of the dump" if key in self._given.origins["reference"] else f"{key}, made by the model"
        if moment is not None and moment in self._held.keys:
            return f"{self._held.keys[moment]} of the dump"
        viewed = self._parameters.names(self._alone.layer.frame, atom)
        return "".join(f"what the layer sees of param/{name}" for name in viewed) or "computed by the model"

    def whole_gradient(self, atom: Atom) -> Array | None:
        """The gradient of the loss with respect to a variable; None where the dump does not have it."""
        moment = self._moment(atom)
        leaf, sliced = self._leaf(moment), self._sliced(moment)
        if leaf is not None:
            return self._argument_gradient(leaf)
        if moment is not None and sliced is not None:
            stacked = self._argument_gradient(sliced)
            return None if stacked is None else stacked[moment.turn[-1]]
        if moment is None or moment not in self._held.with_cotangent:
            return None
        return np.asarray(self._held.held[moment.value].cotangents)[moment.turn]

    def own_gradient(self, atom: Atom) -> Array | None:
        """The gradient that this layer alone sends back to a variable; None where the dump does not tell it."""
        moment = self._moment(atom)
        root = self._given.trace.root
        loss = resolve(root, root.jaxpr.outvars[0])
        if moment is None or loss is None or self._alone.reads_its_outputs():
            return None
        ends = {*self._held.with_cotangent, *self._held.without_cotangent, Moment(loss, ())}
        readers = Pieces(root, {*self._held.keys, moment}).readers(ends).get(moment, [])
        return self.whole_gradient(atom) if readers and all(map(self._alone.makes, readers)) else None

    def _moment(self, atom: Atom) -> Moment | None:
        """The value of a variable where it is made: a carry's in the turn before, an argument's at the root."""
        value = resolve(self._alone.layer.frame, atom)
        if value is None:
            return None
        moment = Moment(value, self._alone.turn[: len(self._frames[value.frame].loops)])
        while moment not in self._held.keys:
            found = [each for each in sources(self._frames, moment) if self._shape(each) == tuple(atom.aval.shape)]
            if len(found) != 1:
                break
            (moment,) = found
        return moment

    def _shape(self, moment: Moment) -> tuple[int, ...]:
        return tuple(variable_of(self._frames[moment.value.frame], moment.value).aval.shape)

    def _argument_gradient(self, leaf: Leaf) -> Array | None:
        key = naming.key_of(naming.gradient_family(leaf.family) or leaf.family, leaf.name)
        known = leaf.differentiated and self._dump.has_tensor(key)
        return self._dump.array(key) if known else None

    def _sliced(self, moment: Moment | None) -> Leaf | None:
        """The argument of which a value is one turn's slice; None for any other."""
        if moment is None or moment.value.equation != OPERAND or len(moment.turn) != 1:
            return None
        (loop,) = self._frames[moment.value.frame].loops
        stacked = (loop.length, *self._shape(moment))
        wholes = [each for each in sources(self._frames, moment) if self._shape(each) == stacked]
        return self._leaf(wholes[0]) if len(wholes) == 1 else None

    def _leaf(self, moment: Moment | None) -> Leaf | None:
        """The argument that a value is; None for any other."""
        is_argument = moment is not None and not moment.value.frame and moment.value.equation == OPERAND
        return self._given.trace.arguments[moment.value.position] if is_argument and moment is not None else None
