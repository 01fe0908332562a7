"""The graph of layers: which value or gradient is computed from which.

Forward, a value is made by a layer from the layer's inputs and parameters. Backward, the gradient with respect to a
value is made by the layers that read it, from the gradients with respect to their outputs and from what they read; the
gradient with respect to a parameter by the layers that use it.

Sharp edge: what a turn of a loop takes over from the turn before is no layer's output. A layer in a loop that reads
nothing known is taken to read what was made right before it, and the loop's own output to be made of the last in it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeAlias

from gradscope.dump.manifest import Layer
from gradscope.naming import ACTIVATION, ACTIVATION_GRAD, INPUT, INPUT_GRAD, PARAM, PARAM_GRAD, key_of

#: The keys that each key is computed from.
Sources: TypeAlias = Mapping[str, Sequence[str]]

_LOOPS: Final = ("scan", "while")


def sources_of(layers: Sequence[Layer]) -> Sources:
    """What each value and each gradient is computed from.

    Args:
        layers: The layers in execution order, composites before their parts.

    Returns:
        The sources by key; keys of owners, as layers name their values.
    """
    forward: dict[str, list[str]] = {}
    backward: defaultdict[str, list[str]] = defaultdict(list)
    for layer in _connected(layers):
        values, params = _keys(layer.inputs, ACTIVATION, INPUT), _keys(layer.params, PARAM)
        # A part comes after the composite around it, and is nearer to what its output is made of.
        forward |= dict.fromkeys(_keys(layer.outputs, ACTIVATION), values + params)
        cotangents = _keys(layer.outputs, ACTIVATION_GRAD)
        for key in _keys(layer.inputs, ACTIVATION_GRAD, INPUT_GRAD):
            backward[key] += [source for source in (*cotangents, *values, *params) if source != key]
        for key in _keys(layer.params, PARAM_GRAD):
            backward[key] += cotangents + values
    return forward | backward


def consequences(sources: Sources, first: str) -> frozenset[str]:
    """Everything that is computed from a value or gradient, at whatever remove, itself aside."""
    readers: defaultdict[str, list[str]] = defaultdict(list)
    for key, made_of in sources.items():
        for source in made_of:
            readers[source].append(key)
    found: set[str] = set()
    left = [first]
    while left:
        fresh = [key for key in readers[left.pop()] if key not in found]
        found.update(fresh)
        left += fresh
    return frozenset(found - {first})


def readers_of(layers: Sequence[Layer], name: str) -> tuple[str, ...]:
    """The paths of the innermost layers that read a value."""
    reading = [layer for layer in layers if name in layer.inputs]
    around = {layer.parent for layer in reading}
    return tuple(layer.path for layer in reading if layer.path not in around)


def _connected(layers: Sequence[Layer]) -> list[Layer]:
    """The layers, with what the turns of loops hand on to each other and to what comes behind."""
    by_path = {layer.path: layer for layer in layers}
    last_inside: dict[str, tuple[str, ...]] = {}
    found: list[Layer] = []
    for position, layer in enumerate(layers):
        around = _around(layer, by_path)
        loops = [each.path for each in around.values() if each.primitive in _LOOPS]
        last_inside |= dict.fromkeys(loops, layer.outputs) if layer.outputs else {}
        if loops and not layer.inputs:
            before = (each.outputs for each in reversed(found[:position]) if each.outputs and each.path not in around)
            found.append(replace(layer, inputs=next(before, ())))
        else:
            found.append(layer)
    made = [replace(by_path[path], inputs=outputs) for path, outputs in last_inside.items()]
    return [*found, *made]


def _around(layer: Layer, by_path: Mapping[str, Layer]) -> dict[str, Layer]:
    """The layers around a layer by their paths, the innermost first."""
    found: dict[str, Layer] = {}
    # A stranger's file may have layers that are around each other.
    while layer.parent is not None and layer.parent in by_path and layer.parent not in found:
        layer = by_path[layer.parent]
        found[layer.path] = layer
    return found


def _keys(names: Iterable[str], *families: str) -> list[str]:
    return [key_of(family, name) for name in names for family in families]
