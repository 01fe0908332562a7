"""`InheritedPrecision` returns the dtype in which a tensor of a dump was computed, by what it was computed from.

A program in mixed precision computes layers in bfloat16 and stores parameters, their gradients and the loss in
float32. A float32 tensor that was computed from bfloat16 has the digits of bfloat16. So the dtype that counts for a
tensor is the coarsest of its own and of all that it was computed from, along the graph of layers. What layers compute
inside is included where most of them compute in fewer digits. An auxiliary output is no part of that graph. One that
updates state, as a batch norm does, is computed in the layer that has the state; any other may be computed from any
layer. What is computed outside of all layers, between the values that the dump knows, is not seen; the candidate can be
said to be of a dtype by hand.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, reduce
from typing import TypeVar

from gradscope.comparison.default_tolerances import READ_FAMILIES
from gradscope.comparison.judging.rounding.mixed_precision import mixed_dtype
from gradscope.comparison.pairing.normal_forms import NamesWithin
from gradscope.comparison.precision import coarser, dtype_class
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.layer_graph import before, sources_of
from gradscope.dump.manifest.manifest import Entry, Layer
from gradscope.naming import (
    ACTIVATION,
    ACTIVATION_GRAD,
    AUX,
    EXAMPLE_GRAD,
    PARAM,
    PARAM_GRAD,
    STATE,
    is_gradient,
    key_of,
    split_key,
)
from gradscope.naming.paths import without_iterations, without_occurrence

_Item = TypeVar("_Item")


class InheritedPrecision:
    """InheritedPrecision returns the dtypes in which the tensors of a dump were computed.

    Args:
        source: The dump.
        at_most: The dtype in which everything was computed that is not of a coarser one; None where that is not known.
        direct: Whether only that counts which a tensor is directly computed from.
    """

    def __init__(self, source: DumpSource, at_most: str | None = None, *, direct: bool = False) -> None:
        self._source = source
        self._direct = direct
        self._at_most = at_most
        dtypes = {entry.dtype for entry in source.manifest.entries if dtype_class(entry.dtype) == "float"}
        layers = source.manifest.layers if self.is_mixed else ()
        # A part comes after the layer around it, which may round elsewhere inside.
        innermost = {name: layer for layer in layers for name in layer.outputs} if direct else {}
        inside = [
            (layer.narrowest, name)
            for layer in layers
            for name in layer.outputs
            if layer.narrowest is not None and innermost.get(name, layer) is layer
        ]
        dtypes.update(layer.narrowest for layer in layers if layer.narrowest is not None)
        # With one dtype there is nothing to inherit: most dumps.
        self._sources: Mapping[str, Sequence[str]] = sources_of(source.manifest.layers) if len(dtypes) > 1 else {}
        self._known = frozenset(source.keys()) if self._sources else frozenset[str]()
        #: The dtype in which the layer computes that makes a value, for it and for its gradient.
        self._inside = {
            self._source.resolve(key): dtype
            for dtype, name in inside
            for key in (key_of(family, name) for family in (ACTIVATION, ACTIVATION_GRAD))
            if key in self._known
        }
        self._found: dict[str, str] = {}

    @property
    def is_mixed(self) -> bool:
        """Whether most of the program is in mixed precision, so that what its layers round inside is meant."""
        kernels = {each.name for each in self._source.manifest.entries if each.family == PARAM and len(each.shape) > 1}
        return mixed_dtype(self._source.manifest.layers, kernels) is not None

    def dtype(self, entry: Entry) -> str:
        """Returns the coarsest dtype that went into a tensor; its own where that holds no floating-point numbers."""
        if not self._sources and self._at_most is None:
            return entry.dtype
        if dtype_class(entry.dtype) not in ("float", "complex") or entry.family in READ_FAMILIES:
            return entry.dtype
        family = PARAM_GRAD if entry.family == EXAMPLE_GRAD else entry.family
        found = entry.dtype
        if self._sources:
            key = entry.alias_of or key_of(family, entry.name)
            own = self._of_output(entry.name) if family == AUX else self._inherited(key)
            found = _coarser(found, own)
        return found if self._at_most is None else _coarser(found, self._at_most)

    @cached_property
    def of_any(self) -> str:
        """The coarsest dtype in which any activation was computed: the loss may be made of each; float64 for none."""
        # In one pass over what all of them are computed from: each by itself would be a pass.
        reached = before(self._sources, (key for key, _, _ in self._activations)) & self._known
        dtypes = [dtype for _, dtype, _ in self._activations]
        dtypes += (dtype for key in reached if dtype_class(dtype := self._source.entry(key).dtype) == "float")
        dtypes += self._inside.values()
        found = reduce(_coarser, dtypes, "float64")
        return found if self._at_most is None else _coarser(found, self._at_most)

    def _of_output(self, name: str) -> str:
        """Returns the coarsest dtype that goes into an auxiliary output: in the layers that have what it updates."""
        layers = [layer for each in self._updated(name) for layer in self._users.get(each, ())]
        layers = layers or [layer for each in self._updated(name) for layer in self._scope_of(each)]
        keys = (key_of(ACTIVATION, each) for layer in layers for each in (*layer.inputs, *layer.outputs))
        dtypes = [self._inherited(key) for key in keys if key in self._known]
        return reduce(_coarser, dtypes) if dtypes else self.of_any

    def _updated(self, output: str) -> list[str]:
        """Returns the parameters and the state that an auxiliary output has the name of; a word alone may be any."""
        return [each for each in self._given.of(output) if each == output or "/" in output]

    def _scope_of(self, name: str) -> Sequence[Layer]:
        """Returns the layer that has the name of a variable's scope, or of that within a collection, in each call."""
        scope = name.rpartition("/")[0]
        return self._by_path.get(scope) or self._by_path.get(scope.partition("/")[2], ())

    @cached_property
    def _given(self) -> NamesWithin:
        """The names of the parameters and the state."""
        return NamesWithin(entry.name for entry in self._source.manifest.entries if entry.family in (PARAM, STATE))

    @cached_property
    def _users(self) -> Mapping[str, Sequence[Layer]]:
        """The layers that use each parameter."""
        return _grouped((name, layer) for layer in self._source.manifest.layers for name in layer.params)

    @cached_property
    def _by_path(self) -> Mapping[str, Sequence[Layer]]:
        """The layers by their paths, without the numbers of calls."""
        return _grouped(
            (without_iterations(without_occurrence(layer.path)), layer) for layer in self._source.manifest.layers
        )

    def _inherited(self, key: str) -> str:
        """Returns the coarsest dtype among a tensor and everything that it is computed from."""
        if key not in self._found:
            order, seen = [key], {key}
            for each in [key] if self._direct else order:  # the list grows while it is read
                fresh = [source for source in self._sources.get(each, ()) if source not in seen]
                seen.update(fresh)
                order += fresh
            known = [self._source.entry(each) for each in order if each in self._known]
            computing = self._makers_of(key, order) if self._direct else order
            inside = (self._inside[each] for each in computing if each in self._inside)
            # What reads only values without names may have been computed from anything before it.
            lone = not self._direct and all(entry.family in READ_FAMILIES for entry in known[1:])
            dtypes = [*inside, *(entry.dtype for entry in known if dtype_class(entry.dtype) == "float")]
            dtypes += self._before(known[0]) if lone and known else ()
            self._found[key] = reduce(_coarser, dtypes, "float64")
        return self._found[key]

    @staticmethod
    def _makers_of(key: str, order: Sequence[str]) -> list[str]:
        """Returns the keys of what the layers return that make a tensor: a gradient is made by the layers that read."""
        return [each for each in order if is_gradient(split_key(each)[0]) != (each == key)]

    def _before(self, entry: Entry) -> list[str]:
        """Returns what the activations inherit that are computed before a tensor: all of them for a gradient."""
        if is_gradient(entry.family):
            return [self.of_any]
        return [self._inherited(key) for key, _, index in self._activations if index < entry.site.index]

    @cached_property
    def _activations(self) -> Sequence[tuple[str, str, int]]:
        """The key, dtype and place of each floating-point activation; in order, as searches need it."""
        entries = (each for each in self._source.manifest.entries if each.family == ACTIVATION)
        keys = ((each.alias_of or key_of(ACTIVATION, each.name), each) for each in entries)
        floats = [(key, each.dtype, each.site.index) for key, each in keys if dtype_class(each.dtype) == "float"]
        return sorted(floats, key=lambda found: found[2])


def _grouped(pairs: Iterable[tuple[str, _Item]]) -> Mapping[str, Sequence[_Item]]:
    """Returns items by their names."""
    found: defaultdict[str, list[_Item]] = defaultdict(list)
    for name, item in pairs:
        found[name].append(item)
    return found


def _coarser(first: str, second: str) -> str:
    """Returns the coarser dtype; the first where they are equally fine, so that complex dtypes are kept."""
    return second if coarser(first, second) != coarser(first, first) else first
