"""The layer tree of a run has each layer and iteration, with the power of its inputs and outputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from gradscope import naming
from gradscope.capturing.execution.order import ExecutionOrder
from gradscope.capturing.records.pending_tensors import PendingTensor
from gradscope.dump.manifest.manifest import Layer
from gradscope.instrument.query.capture_spec import CaptureSpec
from gradscope.naming import IterationIndex
from gradscope.stats.power import Power, combined_power
from gradscope.tracing.jaxpr.frames import FrameKey, ValueKey, iterations, resolve
from gradscope.tracing.jaxpr.iterations import ValueAt, sources
from gradscope.tracing.layers.layers import LayerCall
from gradscope.tracing.layers.narrow_layers import NarrowLayers
from gradscope.tracing.layers.uses import UseKey
from gradscope.tracing.lookup.named_sources import NamedSources
from gradscope.tracing.tracer import Trace

#: The most sources that all layers state together, and the number of the last ones that a layer states beyond.
_MOST_SOURCES: Final = 1 << 17
_NEAREST_SOURCES: Final = 16

_Subject: TypeAlias = tuple[ValueKey, IterationIndex]


class LayerTree:
    """A `LayerTree` collects the layers of a run from its tensors.

    Args:
        trace: The traced loss.
        spec: The selection.
        order: Its execution order.
    """

    def __init__(self, trace: Trace, spec: CaptureSpec, order: ExecutionOrder) -> None:
        self._trace = trace
        self._spec = spec
        self._order = order
        self._frames = {frame.key: frame for frame in trace.root.walk()}
        self._loops = {site.value: site.loops for site in trace.sites}
        self._powers: dict[tuple[ValueKey, IterationIndex, bool], Power] = {}
        self._names: dict[_Subject, str] = {}
        self._keys: dict[ValueAt, str] = {}
        self._computed_from = NamedSources(self._frames, {})
        self._stated = 0
        self._iterations: dict[tuple[FrameKey, IterationIndex], IterationIndex] = {}
        self._narrow = NarrowLayers(trace.root)

    def note(self, pending: PendingTensor, power: Power | None) -> None:
        """Adds one tensor."""
        value = pending.origin.value
        if pending.family in (naming.STATE, naming.EXAMPLE_GRAD) or isinstance(value, UseKey):
            return  # state, example gradients and terms are no inputs or outputs of layers
        gradient = naming.is_gradient(pending.family)
        if power is not None:
            self._powers[value, pending.origin.iteration, gradient] = power
        if pending.records and not gradient:
            self._names[value, pending.origin.iteration] = pending.records[0].name
            self._keys[ValueAt(value, pending.origin.iteration)] = naming.key_of(
                pending.family, pending.records[0].name
            )
            self._iterations[value.frame, pending.origin.iteration] = pending.origin.facts.iteration

    def layers(self) -> tuple[Layer, ...]:
        """Returns every selected layer in execution order, composites before their parts."""
        shown = (call for call in self._trace.layers if self._spec.operations or not call.operation)
        calls = [(call, iteration) for call in shown for iteration in iterations(call.frame.loops)]
        calls.sort(key=lambda at: (self._rank(*at), at[0].depth))
        self._computed_from = NamedSources(self._frames, self._keys)
        self._stated = 0
        return tuple(self._layer(call, iteration) for call, iteration in calls if not call.frame.opaque)

    def loss_sources(self) -> tuple[str, ...]:
        """Returns the keys that the loss is next computed from: its own, where a layer returns it.

        None where layers are left out, through which the loss would seem to read what they read.
        """
        value = resolve(self._trace.root, self._trace.root.jaxpr.outvars[0])
        outermost = (call for call in self._trace.layers if not (call.operation or call.parent or call.frame.loops))
        kept = {site.value for site in self._trace.sites if not site.eliminated}
        unknown = (
            each for call in outermost for each in call.outputs if each in kept and (each, ()) not in self._names
        )
        if value is None or any(True for _ in unknown):
            return ()
        value_at = ValueAt(value, ())
        own = self._keys.get(value_at)
        return NamedSources(self._frames, self._keys).of(value_at) if own is None else (own,)

    def _rank(self, call: LayerCall, iteration: IterationIndex) -> int:
        return self._order.rank(call.frame.loops, call.order, iteration)

    def _layer(self, call: LayerCall, iteration: IterationIndex) -> Layer:
        inputs = [self._subject(value, iteration) for value in call.inputs]
        outputs = [self._subject(value, iteration) for value in call.outputs]
        powers = self._powers_of(inputs, outputs)
        return Layer(
            path=self._path(call, iteration),
            index=self._rank(call, iteration),
            parent=None if call.parent is None else self._path(call.parent, iteration[: len(call.parent.frame.loops)]),
            source=call.source,
            primitive=call.primitive,
            operation=call.operation,
            params=tuple(call.params),
            elementwise=tuple(name for name in call.params if call.elementwise.get(name)),
            inputs=tuple(self._named(inputs)),
            outputs=tuple(self._names[subject] for subject in outputs if subject in self._names),
            sources=self._sources(call, inputs, outputs),
            narrowest=self._narrow.dtype(call),
            rms={name: power.rms for name, power in powers.items()},
            elements={name: power.elements for name, power in powers.items()},
        )

    def _named(self, inputs: Sequence[_Subject]) -> Iterator[str]:
        """Yields the names of some values; for a carry, which has none, those of its value in the iteration before."""
        for value, iteration in inputs:
            value_at = ValueAt(value, iteration)
            while value_at not in self._names and len(found := sources(self._frames, value_at)) == 1:
                (value_at,) = found
            if value_at in self._names:
                yield self._names[value_at]

    def _sources(self, call: LayerCall, inputs: Sequence[_Subject], outputs: Sequence[_Subject]) -> tuple[str, ...]:
        """Returns the keys that a layer's outputs are computed from; empty where its inputs and parameters say it."""
        known = [ValueAt(*subject) for subject in outputs if subject in self._names]
        found = dict.fromkeys(key for each in known for key in self._computed_from.of(each))
        read = {self._keys.get(ValueAt(*subject)) for subject in inputs}
        stated = read | {naming.key_of(naming.PARAM, name) for name in call.params}
        if found.keys() == stated:
            return ()
        # The state of a loop may have what each iteration has computed: all together are quadratically many.
        kept = tuple(found) if self._stated + len(found) <= _MOST_SOURCES else tuple(found)[-_NEAREST_SOURCES:]
        self._stated += len(kept)
        return kept

    def _path(self, call: LayerCall, iteration: IterationIndex) -> str:
        return str(call.path.at(self._iterations.get((call.frame.key, iteration), iteration)))

    def _subject(self, value: ValueKey, iteration: IterationIndex) -> _Subject:
        return value, iteration[: len(self._loops.get(value, ()))]

    def _powers_of(self, inputs: list[_Subject], outputs: list[_Subject]) -> Mapping[str, Power]:
        found = {
            "in": self._combined_power(inputs, gradient=False),
            "out": self._combined_power(outputs, gradient=False),
            "grad_in": self._combined_power(inputs, gradient=True),
            "grad_out": self._combined_power(outputs, gradient=True),
        }
        return {name: power for name, power in found.items() if power is not None and power.elements}

    def _combined_power(self, subjects: Iterable[_Subject], *, gradient: bool) -> Power | None:
        """Returns the power of several tensors; None where none of them is known."""
        return combined_power(self._powers.get((*subject, gradient)) for subject in subjects)
