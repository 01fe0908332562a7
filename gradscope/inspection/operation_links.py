"""`Links` returns the operations and arguments that the inputs of an operation come from."""

from __future__ import annotations

from collections.abc import Iterator

from gradscope import naming
from gradscope.tracing.jaxpr.frames import OPERAND, ValueKey
from gradscope.tracing.jaxpr.iterations import ValueAt, sources
from gradscope.tracing.layers.layers import LayerCall
from gradscope.tracing.tracer import Trace


class Links:
    """Links is the graph of the operations of a trace.

    Args:
        trace: A trace that was made with operations.
    """

    def __init__(self, trace: Trace) -> None:
        self._frames = {frame.key: frame for frame in trace.root.walk()}
        self._arguments = [naming.key_of(leaf.family, leaf.name) for leaf in trace.arguments]
        operations = (layer for layer in trace.layers if layer.operation and not stands_for_others(layer))
        self._makers = {value: layer.path.template for layer in operations for value in layer.outputs}
        self._names = {site.value: site.names for site in trace.sites}

    def inputs(self, operation: LayerCall) -> list[str]:
        """Returns the names of operations (for loops, those inside) and keys of arguments that it reads, in order."""
        found = [maker for value in operation.inputs for maker in self._makers_of(value)]
        params = (naming.key_of(naming.PARAM, name) for name in operation.params)
        return list(dict.fromkeys((*found, *params)))

    def layers(self, operation: LayerCall) -> list[str]:
        """Returns the names of the layers whose output the operation computes."""
        names = (name for value in operation.outputs for name in self._names.get(value, ()))
        return list(dict.fromkeys(name.template for name in names if not name.operation))

    def _makers_of(self, value: ValueKey) -> Iterator[str]:
        pending = [ValueAt(value, (0,) * len(self._frames[value.frame].loops))]
        seen: set[ValueKey] = set()
        while pending:
            moment = pending.pop()
            if moment.value in seen:
                continue
            seen.add(moment.value)
            if moment.value in self._makers:
                yield self._makers[moment.value]
            elif not moment.value.frame and moment.value.equation == OPERAND:
                yield self._arguments[moment.value.position]
            else:
                pending.extend(sources(self._frames, moment))


def stands_for_others(operation: LayerCall) -> bool:
    """Returns whether an operation runs other operations of the graph, and so is not a node itself."""
    frames = operation.frame.children.get(operation.equations[0], ())
    return any(not (frame.opaque or frame.transfer.unbounded) for frame in frames)
