"""The graph of layers: which value or gradient is computed from which.

Forward, a value is made by a layer from the layer's inputs and parameters. Backward, the gradient with respect to a
value is made by the layers that read it, from the gradients with respect to their outputs and from what they read; the
gradient with respect to a parameter by the layers that use it.

Sharp edges: a layer may read what is computed around it and is no layer's output; where that is all it reads, it is
taken to read what the layer around it does. No layer says how a loop's output is made of what its turns make; it is
taken to be made of what the last layer in it made.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeAlias

from gradscope.dump.manifest.manifest import Layer
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
        for key in _keys(layer.outputs, ACTIVATION):
            forward[key] = [*forward.get(key, ()), *values, *params] if layer.primitive in _LOOPS else values + params
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
    """The layers with what none of them names, and once more each loop as what makes its output of its last layer's."""
    by_path = {layer.path: layer for layer in layers}
    last_inside: dict[str, tuple[str, ...]] = {}
    found: list[Layer] = []
    for layer in layers:
        around = _around(layer, by_path)
        if layer.outputs:
            last_inside |= {each.path: layer.outputs for each in around if each.primitive in _LOOPS}
        reading = next((each for each in (layer, *around) if each.inputs or each.params), layer)
        found.append(replace(layer, inputs=reading.inputs, params=reading.params))
    return [*found, *(replace(by_path[path], inputs=outputs) for path, outputs in last_inside.items())]


def _around(layer: Layer, by_path: Mapping[str, Layer]) -> list[Layer]:
    """The layers around a layer, the innermost first."""
    found: list[Layer] = []
    # A stranger's file may have layers that are around each other.
    while layer.parent is not None and layer.parent in by_path and by_path[layer.parent] not in found:
        layer = by_path[layer.parent]
        found.append(layer)
    return found


def _keys(names: Iterable[str], *families: str) -> list[str]:
    return [key_of(family, name) for name in names for family in families]
