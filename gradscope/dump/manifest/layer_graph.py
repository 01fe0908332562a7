"""The graph of layers states from which values and gradients each value and gradient is computed.

In the forward pass, a layer computes its outputs from its inputs and parameters. In the backward pass, the layers that
read a value compute the gradient with respect to it, from the gradients with respect to their outputs and from their
inputs. The layers that use a parameter compute the gradient with respect to it.

A layer that reads a value that is not the output of any layer, or has parts, states the sources of its outputs.

Sharp edges: layers of captures from PyTorch state none where it keeps no graph, as without gradients. There, a layer
that reads nothing else gets the inputs of the layer around it. The outputs of a loop count as computed from the outputs
of the last layer inside. A file may have a layer of a million of inputs and of outputs, a million of layers around a
layer, or a long chain of unknown names behind each known one. Only so much of each is followed as no model has.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeAlias

from gradscope.dump.manifest.manifest import Layer
from gradscope.naming import (
    ACTIVATION,
    ACTIVATION_GRAD,
    INPUT,
    PARAM,
    PARAM_GRAD,
    TENSOR,
    gradient_family,
    key_of,
    split_key,
)

#: The keys that each key is computed from.
Sources: TypeAlias = Mapping[str, Sequence[str]]

_LOOPS: Final = ("scan", "while")

#: The most sources of all values or gradients that one layer computes: so many, and some more for each name it has.
_MOST_SOURCES: Final = 1 << 17
_SOURCES_PER_NAME: Final = 16

#: The most layers around a layer.
_DEEPEST: Final = 64

#: The most unknown keys that all searches for nearest ones pass over together.
_MOST_PASSED: Final = 4_000_000


def sources_of(layers: Sequence[Layer]) -> Sources:
    """Returns the sources of each value and each gradient, by the keys of owners.

    Args:
        layers: The layers in execution order, composites before their parts.
    """
    forward: dict[str, list[str]] = {}
    backward: defaultdict[str, list[str]] = defaultdict(list)
    connected = _connected(layers)
    # An input can have the name of a layer: a layer that runs before that one reads the input.
    made_at = {name: layer.index for layer in reversed(layers) for name in layer.outputs}
    for layer in connected:
        if layer.sources:
            _add_stated(layer, forward, backward)
            continue
        read = [
            (name, (INPUT,) if _is_later(made_at.get(name), layer) else (ACTIVATION, INPUT)) for name in layer.inputs
        ]
        values = [key for name, families in read for key in _keys((name,), *families)]
        params = _keys(layer.params, PARAM)
        # A part comes after its composite and replaces its entry, because it has the more direct sources of an output.
        made_of = _bounded([*values, *params], len(layer.outputs))
        for key in _keys(layer.outputs, ACTIVATION):
            if layer.primitive not in _LOOPS or key not in forward:
                forward[key] = []
            forward[key] += made_of
        cotangents = _keys(layer.outputs, ACTIVATION_GRAD)
        gradients = [
            key_of(gradient, name)
            for name, families in read
            for family in families
            if (gradient := gradient_family(family)) is not None
        ]
        made_of = _bounded([*cotangents, *values, *params], len(gradients))
        for key in gradients:
            backward[key] += [source for source in made_of if source != key]
        made_of = _bounded(cotangents + values, len(layer.params))
        for key in _keys(layer.params, PARAM_GRAD):
            backward[key] += made_of
    return forward | backward


def _bounded(sources: list[str], count: int) -> list[str]:
    """Returns the sources of each of so many values of a layer, the first ones where they are too many together."""
    most = (_MOST_SOURCES + _SOURCES_PER_NAME * (len(sources) + count)) // max(count, 1)
    return sources[:most]


def _add_stated(layer: Layer, forward: dict[str, list[str]], backward: dict[str, list[str]]) -> None:
    """Adds the sources of a layer's outputs that the layer states, and of the gradients with respect to those."""
    made_of = _bounded([*layer.sources], len(layer.outputs))
    for key in _keys(layer.outputs, ACTIVATION):
        forward[key] = [source for source in made_of if source != key]
    made_of = _bounded([*_keys(layer.outputs, ACTIVATION_GRAD), *layer.sources], len(layer.sources))
    for family, name in map(split_key, layer.sources):
        if (gradient := gradient_family(family)) is not None:
            key = key_of(gradient, name)
            backward[key] += [source for source in made_of if source != key]


def inverted(sources: Sources) -> dict[str, list[str]]:
    """Returns the keys that are computed from each key."""
    readers: defaultdict[str, list[str]] = defaultdict(list)
    for key, made_of in sources.items():
        for source in made_of:
            readers[source].append(key)
    return dict(readers)


def nearest(graph: Mapping[str, Sequence[str]], key: str, known: Container[str]) -> list[str]:
    """Returns the nearest keys behind one key that are known. See `NearestKeys`, which is for many keys."""
    return NearestKeys(graph, known).behind(key)


class NearestKeys:
    """`NearestKeys` finds the nearest keys behind a key that are known; those that are not are passed over.

    All searches together pass over so many at most: a file may have a chain of unknown keys behind each known one.

    Args:
        graph: The keys next behind each key: its sources, or what is computed from it.
        known: The keys at which a search ends.
    """

    def __init__(self, graph: Mapping[str, Sequence[str]], known: Container[str]) -> None:
        self._graph, self._known = graph, known
        self._left = _MOST_PASSED

    def behind(self, key: str) -> list[str]:
        """Returns the nearest keys behind a key."""
        found: list[str] = []
        seen, pending = {key}, [key]
        while pending:
            following = self._graph.get(pending.pop(), ())
            for each in following:
                if each not in seen:
                    seen.add(each)
                    (found if each in self._known else pending).append(each)
            if pending:
                self._left -= 1 + len(following)
                if self._left < 0:
                    break
        return found


def consequences(sources: Sources, first: str) -> frozenset[str]:
    """Returns the keys that are computed, directly or indirectly, from a value or gradient, without its own key."""
    readers = inverted(sources)
    found: set[str] = set()
    pending = [first]
    while pending:
        fresh = {*readers.get(pending.pop(), ())} - found
        found |= fresh
        pending += fresh
    return frozenset(found - {first})


def before(sources: Sources, keys: Iterable[str]) -> frozenset[str]:
    """Returns some values or gradients, and those that they are computed from, directly or indirectly."""
    pending = list(keys)
    found = set(pending)
    while pending:
        fresh = {*sources.get(pending.pop(), ())} - found
        found |= fresh
        pending += fresh
    return frozenset(found)


def results_of(sources: Sources, keys: Collection[str], stops: Collection[str]) -> frozenset[str]:
    """Returns the values that are computed from any of some keys, on a way that passes none at which it stops.

    Args:
        sources: What each value is computed from.
        keys: The keys.
        stops: The keys that are not passed.
    """
    readers = inverted(sources)
    found, waiting = set[str](), [*keys]
    while waiting:
        fresh = {*readers.get(waiting.pop(), ())} - found
        found |= fresh
        waiting += (each for each in fresh if each not in stops and each not in keys)
    return frozenset(found)


def sources_among(sources: Sources, key: str, targets: Collection[str], stops: Collection[str]) -> frozenset[str]:
    """Returns those of some keys that a value is computed from, on a way that passes none at which it stops.

    Args:
        sources: What each value is computed from.
        key: The value.
        targets: The keys that are looked for.
        stops: The keys that are not passed.
    """
    found: set[str] = set()
    seen, waiting = {key}, [key]
    while waiting:
        for each in sources.get(waiting.pop(), ()):
            if each in seen or each in stops:
                continue
            seen.add(each)
            if each in targets:
                found.add(each)
            waiting.append(each)
    return frozenset(found)


def sources_first(sources: Sources, keys: Collection[str]) -> tuple[str, ...]:
    """Returns some values or gradients, each behind those of them that it is computed from."""
    ordered: dict[str, None] = {}
    seen: set[str] = set()  # an untrusted manifest can have cycles
    pending = [key for key in sources if key in keys][::-1]
    while pending:
        key = pending[-1]
        if key in seen:
            ordered[pending.pop()] = None
        else:
            seen.add(key)
            pending += [each for each in sources.get(key, ())[::-1] if each in keys and each not in seen]
    return tuple(ordered)


def readers_of(layers: Sequence[Layer], name: str) -> tuple[str, ...]:
    """Returns the paths of the innermost layers that read a value, and of blocks with a sum of their own of it."""
    key = key_of(ACTIVATION, name)
    reading = [layer for layer in layers if name in layer.inputs or key in layer.sources]
    around = {layer.parent for layer in reading}
    made = {output for layer in reading if layer.path not in around for output in layer.outputs}
    own = {layer.path for layer in reading if key in layer.sources and made.isdisjoint(layer.outputs)}
    return tuple(layer.path for layer in reading if layer.path not in around or layer.path in own)


def unclear_keys(layers: Sequence[Layer], errors: Mapping[str, float]) -> frozenset[str]:
    """Returns the values and gradients of which the graph does not tell what they are computed from.

    Of a layer that returns several values, each may be computed from some of what it reads, unless all of them agree;
    and so may the gradient of what such a layer reads be from some of those that arrive at it.

    Args:
        layers: The layers of a program.
        errors: The relative errors of its values and gradients that are compared, by key.
    """
    several = [layer for layer in layers if len(layer.outputs) > 1]
    single = {layer.outputs[0] for layer in layers if len(layer.outputs) == 1}
    values = {
        key_of(family, name)
        for layer in several
        for family in (ACTIVATION, TENSOR)
        if math.inf in (errors.get(key_of(family, name), math.inf) for name in layer.outputs)
        for name in layer.outputs
        if name not in single
    }
    gradients = {key_of(ACTIVATION_GRAD, name) for layer in several for name in layer.inputs}
    return frozenset(values | gradients)


def _is_later(index: int | None, layer: Layer) -> bool:
    return index is not None and index > layer.index and layer.primitive not in _LOOPS


def _connected(layers: Sequence[Layer]) -> list[Layer]:
    """Returns the layers with inferred inputs, then each loop again with the outputs of its last layer as inputs."""
    by_path = {layer.path: layer for layer in layers}
    last_inside: dict[str, tuple[str, ...]] = {}
    found: list[Layer] = []
    for layer in layers:
        around = layers_around(layer, by_path)
        if layer.outputs:
            last_inside |= {
                each.path: layer.outputs for each in around if each.primitive in _LOOPS and not each.sources
            }
        reading = next((each for each in (layer, *around) if each.inputs or each.params or each.sources), layer)
        found.append(replace(layer, inputs=reading.inputs, params=reading.params))
    return [*found, *(replace(by_path[path], inputs=outputs) for path, outputs in last_inside.items())]


def layers_around(layer: Layer, by_path: Mapping[str, Layer]) -> list[Layer]:
    """Returns the layers around a layer, the innermost first."""
    found: list[Layer] = []
    # The manifest of an untrusted file can have cycles of parents.
    while layer.parent is not None and layer.parent in by_path and len(found) < _DEEPEST:
        layer = by_path[layer.parent]
        found.append(layer)
    return found


def _keys(names: Iterable[str], *families: str) -> list[str]:
    return [key_of(family, name) for name in names for family in families]
