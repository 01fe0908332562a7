"""Layer inputs that no layer returns are known by their root mean square alone.

Between two layers a program can compute more: an activation function, a scale, a sum in the code of the module around
both. A dump does not have such a value, but it states for each layer the root mean square of all that the layer reads,
and of the gradients with respect to that. Where this differs in an isolated candidate, which got everything else from
the reference, the code before the layer is wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from gradscope import naming
from gradscope.arrays.blocks import Array
from gradscope.arrays.dtypes import is_key
from gradscope.capturing.isolate.pinned_arguments import PinnedArguments
from gradscope.capturing.isolate.pinned_values import PinnedValues, why_unreachable
from gradscope.comparison.default_tolerances import coarsest_matmul_dtype, default_tolerance
from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.comparison.pairing.reverse import ReversePairing
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.manifest import Layer
from gradscope.instrument.isolating import IsolatedRun
from gradscope.naming import IterationIndex
from gradscope.stats.power import Power, combined_power
from gradscope.tracing.jaxpr.frames import OPERAND, Frame, FrameKey, ValueKey, iterations, variable_of
from gradscope.tracing.jaxpr.iterations import ValueAt, sources
from gradscope.tracing.layers.layers import LayerCall
from gradscope.tracing.tracer import Trace

#: The share of a tensor's tolerance up to which two root mean squares are equal: rounding errors cancel in them.
_OF_TOLERANCE: Final = 0.05

#: A call of a layer in one iteration of the loops around it.
CallAt = tuple[LayerCall, IterationIndex]


def inputs_between(trace: Trace, pinned: PinnedValues) -> dict[ValueAt, list[CallAt]]:
    """Returns the values that layers read and the reference does not have, each with its readers, outermost first.

    Args:
        trace: The candidate's loss.
        pinned: The values that the reference has.
    """
    frames = {frame.key: frame for frame in trace.root.walk()}
    watchable = {
        site.value for site in trace.sites if site.differentiable and not site.eliminated and not why_unreachable(site)
    }
    found: dict[ValueAt, list[CallAt]] = {}
    for call in trace.layers:
        for iteration in iterations(call.frame.loops):
            for value_at in _read(frames, call, iteration):
                if value_at.value in watchable and not _is_known(known_source(frames, pinned, value_at), pinned):
                    found.setdefault(value_at, []).append((call, iteration))
    return found


def known_source(frames: Mapping[FrameKey, Frame], pinned: PinnedValues, value_at: ValueAt) -> ValueAt:
    """Returns the value that a value is in another frame, as a loop carries it, back to a pinned one or an argument."""
    shape = _shape(frames, value_at)
    while value_at not in pinned.keys:
        found = [each for each in sources(frames, value_at) if _shape(frames, each) == shape]
        if len(found) != 1:
            break
        (value_at,) = found
    return value_at


class LayerInputs:
    """`LayerInputs` tell whether the inputs of an isolated candidate's layers agree with the reference's.

    Args:
        dumps: The reference's dump and the candidate's.
        matches: The pairs of their tensors.
        arguments: The candidate's loss and its arguments.
        pinned: The values that the reference has.
        run: The isolated run, in which those of `readers` were watched.
        readers: What `inputs_between` returned.
    """

    def __init__(
        self,
        dumps: Dumps,
        matches: Iterable[Match],
        arguments: PinnedArguments,
        *,
        pinned: PinnedValues,
        run: IsolatedRun,
        readers: Mapping[ValueAt, Sequence[CallAt]],
    ) -> None:
        matches = list(matches)
        self._layers = _counterparts(dumps, matches)
        self._placing = ReversePairing(dumps, matches)
        self._products = coarsest_matmul_dtype(dumps.ref.manifest.provenance, dumps.cand.manifest.provenance)
        self._arguments = arguments
        self._pinned = pinned
        self._run = run
        self._readers = readers
        self._frames = {frame.key: frame for frame in arguments.trace.root.walk()}
        self._names = {site.value: site.names for site in arguments.trace.sites}

    def agrees(self, value_at: ValueAt, *, gradient: bool) -> bool | None:
        """Returns whether an input, or the gradient that arrives at it, is the reference's; None where it is not known.

        Args:
            value_at: One of the values between layers.
            gradient: Whether the gradient is compared.
        """
        # Of several readers, the one that reads the fewest elements shows most.
        found = (self._compared(*call_at, gradient=gradient) for call_at in self._readers[value_at])
        known = sorted(each for each in found if each is not None)
        return known[0][1] if known else None

    def gets_zeros(self, value_at: ValueAt) -> bool:
        """Returns whether the gradient that arrives at an input is zero in every element.

        Args:
            value_at: One of the values between layers.
        """
        gradient = self._run.gradient(value_at)
        return gradient is not None and not np.any(gradient)

    def _compared(self, call: LayerCall, iteration: IterationIndex, *, gradient: bool) -> tuple[int, bool] | None:
        """Returns how many elements a layer reads, and whether their root mean square is the reference's."""
        ref = self._counterpart(call, iteration)
        read = list(_read(self._frames, call, iteration))
        own = combined_power(self._power(value_at, gradient=gradient) for value_at in read)
        name = "grad_in" if gradient else "in"
        if ref is None or own is None or name not in ref.rms or ref.elements.get(name) != own.elements:
            return None
        family = naming.ACTIVATION_GRAD if gradient else naming.ACTIVATION
        dtypes = [str(variable_of(self._frames[each.value.frame], each.value).aval.dtype) for each in read]
        tolerance = max(default_tolerance(family, dtype, dtype, products=self._products) for dtype in dtypes)
        return own.elements, abs(own.rms - ref.rms[name]) <= _OF_TOLERANCE * tolerance * ref.rms[name]

    def _counterpart(self, call: LayerCall, iteration: IterationIndex) -> Layer | None:
        path = str(call.path.at(iteration))
        names = (name for value in self._outputs(call) for name in self._names.get(value, ()))
        keys = (naming.key_of(naming.ACTIVATION, str(name.at(iteration))) for name in names)
        found = (self._layers[key].get(path) for key in keys if key in self._layers)
        return next((each for each in found if each is not None), None)

    def _outputs(self, call: LayerCall) -> Iterator[ValueKey]:
        """Yields the values that a layer returns in each of its own iterations."""
        return (value for value in call.outputs if self._frames[value.frame].loops == call.frame.loops)

    def _power(self, value_at: ValueAt, *, gradient: bool) -> Power | None:
        """Returns the power of a value of the isolated run, or of its gradient; of known ones, the reference's."""
        known = known_source(self._frames, self._pinned, value_at)
        if known in self._pinned.keys:
            pinned = self._pinned.arrays[known.value]
            stacked = pinned.cotangents if gradient else pinned.values
            unknown = gradient and known not in self._pinned.with_cotangent
            return None if unknown else _power_of(np.asarray(stacked)[known.iteration])
        if _is_argument(known):
            return self._power_of_argument(known.value.position, gradient=gradient)
        seen: Mapping[Any, Any] = self._run.cotangents if gradient else self._run.values
        return _power_of(np.asarray(seen[value_at.value])[value_at.iteration]) if value_at.value in seen else None

    def _power_of_argument(self, number: int, *, gradient: bool) -> Power | None:
        leaf = self._arguments.trace.arguments[number]
        family = naming.gradient_family(leaf.family)
        if leaf.family == naming.STATE or is_key(str(leaf.dtype)):
            return None
        if not gradient:
            return _power_of(np.asarray(self._arguments.leaves[number]))
        array = self._placing.array(naming.key_of(family, leaf.name)) if family and leaf.differentiated else None
        return None if array is None else _power_of(array)


def _counterparts(dumps: Dumps, matches: Iterable[Match]) -> dict[str, dict[str, Layer]]:
    """Returns the layers of the reference by the keys of their outputs and their own paths in the candidate."""
    of_ref, of_cand = _makers(dumps.ref), _makers(dumps.cand)
    found: dict[str, dict[str, Layer]] = {}
    for match in (each for each in matches if len(each.recipe.keys) == 1 and each.ref in of_ref):
        key = match.recipe.keys[0]
        paths = [layer.path for layer in of_cand.get(key, ())]
        if len(paths) == len(of_ref[match.ref]):
            found[key] = dict(zip(paths, of_ref[match.ref], strict=True))
        else:
            # One program opens more scopes around the innermost layer than the other.
            named = {layer.path: layer for layer in of_ref[match.ref]}
            found[key] = {path: named[path] for path in paths if path in named}
            found[key] |= dict.fromkeys(paths[-1:], of_ref[match.ref][-1])
    return found


def _makers(dump: DumpSource) -> dict[str, list[Layer]]:
    """Returns the layers that return each value, by its key, outermost first: a block and the layer that ends it."""
    found: dict[str, list[Layer]] = {}
    for layer in dump.manifest.layers:
        for name in layer.outputs:
            found.setdefault(naming.key_of(naming.ACTIVATION, name), []).append(layer)
    return found


def _read(frames: Mapping[FrameKey, Frame], call: LayerCall, iteration: IterationIndex) -> Iterator[ValueAt]:
    for value in call.inputs:
        yield ValueAt(value, iteration[: len(frames[value.frame].loops)])


def _is_known(value_at: ValueAt, pinned: PinnedValues) -> bool:
    return value_at in pinned.keys or _is_argument(value_at)


def _is_argument(value_at: ValueAt) -> bool:
    return not value_at.value.frame and value_at.value.equation == OPERAND


def _shape(frames: Mapping[FrameKey, Frame], value_at: ValueAt) -> tuple[int, ...]:
    return tuple(variable_of(frames[value_at.value.frame], value_at.value).aval.shape)


def _power_of(array: Array) -> Power | None:
    """Returns the power of a tensor's finite elements; None for integers, which have none."""
    if array.dtype.kind in "biu":
        return None
    size = np.abs(array.astype(np.complex128 if np.iscomplexobj(array) else np.float64)).ravel()
    finite = size[np.isfinite(size)]
    largest = float(finite.max(initial=0.0))
    # The squares of large float64s are beyond its range.
    rms = largest * float(np.sqrt(np.mean(np.square(finite / largest)))) if largest else 0.0
    return Power(rms, finite.size)
