"""A `Place` is where a value is in a program: with which parameters it is computed, and read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gradscope.comparison.pairing.structure.shared_parameters import ParameterNames
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.manifest import Entry, Layer
from gradscope.naming import ACTIVATION, key_of
from gradscope.naming.paths import without_iterations


@dataclass(frozen=True, slots=True)
class Place:
    """Place stores the parameters of the innermost layer that computes a value, and of the innermost that has any.

    Where no layer around it has any, the latter are those of other layers that it is computed with, as the outputs of a
    model with the weights of its embedding. Those of the layers that read it are in `read_with`, those of the layer
    around the innermost one that computes it in `outer`, and those of the norm of which it is a step in `within`.
    """

    params: frozenset[str] = frozenset()
    around: frozenset[str] = frozenset()
    read_with: frozenset[str] = frozenset()
    outer: frozenset[str] = frozenset()
    within: frozenset[str] = frozenset()

    def is_read_like(self, other: Place, known: frozenset[str]) -> bool:
        """Returns whether two values are read with a parameter in common, both by a norm or both by steps of it.

        Args:
            other: The place of a value of the other program.
            known: The parameters that have a counterpart.
        """
        return bool((self.read_with & other.read_with | self.within & other.within) & known)


def places_of(layers: Sequence[Layer], names: ParameterNames) -> dict[str, Place]:
    """Returns the place of each value by its name.

    Args:
        layers: The layers of a program, composites before their parts.
        names: The common names of its parameters.
    """
    params_of = _params_of(layers, names)
    composites = {layer.parent for layer in layers}
    outer: dict[str, frozenset[str]] = {}
    made: dict[str, frozenset[str]] = {}
    around: dict[str, frozenset[str]] = {}
    read: dict[str, set[str]] = {}
    for layer in layers:
        params = params_of[layer.path]
        for name in layer.outputs:
            outer[name] = params_of.get(layer.parent or "", frozenset())
            made[name] = params  # a part comes after its composite, and is more exact
            around[name] = params or around.get(name) or names.read_by(layer)
        if layer.path not in composites:
            for name in layer.inputs:
                read.setdefault(name, set()).update(params)
    none = frozenset[str]()
    values = {*made, *read}
    return {
        key: Place(made.get(key, none), around.get(key, none), frozenset(read.get(key, ())), outer.get(key, none))
        for key in values
    }


def _params_of(layers: Sequence[Layer], names: ParameterNames) -> dict[str, frozenset[str]]:
    """Returns the parameters of each layer with those of its parts, by its path."""
    found = {layer.path: names.of(layer) for layer in layers}
    for layer in reversed(layers):  # captures of PyTorch do not have the parameters of parts in layers around them
        if layer.parent in found:
            found[layer.parent] |= found[layer.path]
    return found


def index_of(source: DumpSource, key: str) -> int:
    """Returns the execution index of a tensor.

    Args:
        source: The dump.
        key: Its key, or that of another name of it.
    """
    return source.entry(source.resolve(key)).site.index


def first_uses(source: DumpSource, places: Mapping[str, Place]) -> dict[str, int]:
    """Returns the execution index of the first value that is computed with each parameter.

    One that no iteration of a loop uses, but the loop itself, may be used before the first, as where the inputs of all
    steps are multiplied at once.

    Args:
        source: The dump.
        places: The places of its values.
    """
    found: dict[str, int] = {}
    of_layers: dict[str, int] = {}
    known, begins = frozenset(source.keys()), _begins(source)
    for name, place in places.items():
        key = key_of(ACTIVATION, name)
        if place.params and key in known:
            index = index_of(source, key)
            uses, first = (of_layers, begins[name]) if begins.get(name, index) < index else (found, index)
            uses.update((param, min(first, uses.get(param, first))) for param in place.params)
    return of_layers | found


def _begins(source: DumpSource) -> dict[str, int]:
    """Returns the execution index of the first value that is made in the loop of each output, by its name."""
    known, first = frozenset(source.keys()), dict[str, int]()
    for layer in reversed(source.manifest.layers):  # parts come after their composites
        keys = (key_of(ACTIVATION, name) for name in layer.outputs)
        own = [index_of(source, key) for key in keys if key in known]
        indices = [*own, *((first[layer.path],) if layer.path in first else ())]
        for path in (layer.path, layer.parent) if indices else ():
            if path is not None:
                first[path] = min(first.get(path, min(indices)), *indices)
    makers = {name: layer.path for layer in source.manifest.layers for name in layer.outputs}
    loops = {layer.path.rpartition("[")[0] for layer in source.manifest.layers}
    return {name: first[path] for name, path in makers.items() if path in first and path in loops}


def later_uses(entry: Entry, params: Iterable[str], uses: Mapping[str, int]) -> Iterator[int]:
    """Yields by how much later than a value other parameters are used, with which its counterpart is computed.

    Args:
        entry: The value.
        params: Parameters with which its counterpart is computed, and it is not.
        uses: When each parameter is used first.
    """
    return (uses[param] - entry.site.index for param in params if param in uses)


def steps_of_loops(layers: Sequence[Layer], names: ParameterNames) -> frozenset[str]:
    """Returns the names of values of iterations that use the parameters which another iteration uses, too.

    Args:
        layers: The layers.
        names: The common names of their parameters.
    """
    found: defaultdict[tuple[str, frozenset[str]], list[str]] = defaultdict(list)
    for layer in layers:
        if "[" in layer.path and (params := names.of(layer)):
            found[without_iterations(layer.path), params].extend(layer.outputs)
    return frozenset(name for outputs in found.values() if len(outputs) > 1 for name in outputs)
