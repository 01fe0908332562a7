"""Unread values are made by operations and read by nothing that is run, beside being outputs of layers.

`u, s, v = svd(a)` of which only `s` is used makes `u` and `v`, too. They are in no dump, and their operation, which
runs, is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gradscope.tracing.dataflow.liveness import Liveness
from gradscope.tracing.jaxpr.frames import Frame, ValueKey, made_at
from gradscope.tracing.jaxpr.jaxcompat import Atom, is_literal
from gradscope.tracing.layers.layers import LayerCall
from gradscope.tracing.layers.sites import SiteName


class UnreadValue(NamedTuple):
    """An `UnreadValue` is one output of an operation that nothing reads: its name, and the frame it is made in."""

    name: SiteName
    frame: Frame


def unread_values(root: Frame, layers: Sequence[LayerCall], liveness: Liveness) -> Iterator[UnreadValue]:
    """Yields the values that operations make and nothing that is run reads, except the outputs of layers.

    Args:
        root: The root frame.
        layers: Its layers, operations among them.
        liveness: What any output depends on.
    """
    makers = {(layer.frame.key, layer.equations[0]): layer for layer in layers if layer.operation}
    known = {value for layer in layers for value in layer.outputs}
    frames = {frame.key: frame for frame in root.walk()}
    for value in dict.fromkeys(value for frame in frames.values() for value in _unread_in(frame, liveness)):
        layer, frame = makers.get((value.frame, value.equation)), frames[value.frame]
        if layer is not None and value not in known:
            around = layer.parent and layer.parent.path
            several = len(frame.jaxpr.eqns[value.equation].outvars) > 1
            yield UnreadValue(
                SiteName(path=layer.path, output=value.position if several else None, layer=around), frame
            )


def _unread_in(frame: Frame, liveness: Liveness) -> Iterator[ValueKey]:
    used = liveness.used(frame)
    operands = (atom for number in used for atom in frame.jaxpr.eqns[number].invars)
    read: set[Atom] = {atom for atom in (*operands, *frame.jaxpr.outvars) if not is_literal(atom)}
    for number, equation in enumerate(frame.jaxpr.eqns):
        for position, variable in enumerate(equation.outvars):
            if variable not in read:
                yield made_at(frame, number, position)
