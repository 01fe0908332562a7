"""Rounding floors are how far two tensors may be apart, in absolute terms, because sums are rounded.

A gradient can be zero but for rounding: that of a bias before a batch norm, or of the bias of the keys of attention.
Its relative error is then about 1 and means nothing. The *floor* of a computed tensor is an l2 norm that rounding alone
can reach. It follows from the scale of the tensors that it is computed from, and from the number of terms summed:

    expected = sqrt(n) * scale * sqrt(size)                  the norm where terms do not cancel
    floor    = MARGIN * epsilon * sqrt(min(n, BLOCK)) * expected

`epsilon` is that of the coarser dtype, `n` the number of terms of each element, `size` the number of elements, and
`scale` the size of one term, a product of root mean squares:

    tensor                        terms                         size of a term
    gradient of a parameter       positions of the output       gradient of the output, times the input for a kernel
    gradient of an activation     outputs of each input         gradient of the output, times the kernel
    of one that is broadcast      outputs of each input         gradient of the output, times the factors of a product
    activation                    inputs of each output         input, times the kernel

Rounding of a sum whose terms cancel grows with the partial sums, as sqrt(n) each, and n roundings of that size add up
to n. Sums of more than `BLOCK` terms are added in blocks. Types of up to 16 bits are added in float32, so that only
their terms are rounded, and the factor sqrt(min(n, BLOCK)) is 1.

A floor counts only where the terms of a tensor cancel: where its norm is below a tenth of what is expected, and for
types of up to 16 bits below two floors. A real error in a tensor of ordinary size is never below the floor. What one
operation makes of such a gradient is rounding of the same relative size, and has a floor in proportion. Only layers
with parameters and operations that broadcast state the size of a term, so that other tensors have no floor; parameters
and inputs are not computed, and have none.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gradscope.comparison.metrics.evidence import PairEvidence
from gradscope.comparison.precision import dtype_class, machine_epsilon
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.json_text import as_float
from gradscope.dump.manifest.manifest import Entry, Layer
from gradscope.naming import ACTIVATION, ACTIVATION_GRAD, EXAMPLE_GRAD, INPUT, INPUT_GRAD, PARAM, PARAM_GRAD, key_of

#: How many times the expected rounding a floor is: elements differ in scale, and a layer computes several things.
_MARGIN: Final = 4.0

#: The machine epsilon above which a type has up to 16 bits.
NARROW: Final = 1e-4

#: Terms cancel where a norm is below this share of what is expected.
_CANCELLED: Final = 0.1

#: The number of terms that are added one after the other before such sums are added to each other.
_BLOCK: Final = 4096

#: How many operations are followed from a gradient that cancels.
_FOLLOWED: Final = 16

#: Operations that may broadcast an operand, whose derivative with respect to it is one, or the other factor.
_BROADCASTING: Final = frozenset({"broadcast_in_dim", "add", "sub", "mul"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """Floor stores the l2 norm that rounding can reach.

    Attributes:
        l2: The norm.
        cancelled: The norm up to which the terms of a tensor cancel, so that the floor counts.
        terms: The number of terms of each element.
    """

    l2: float
    cancelled: float
    terms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sum:
    """_Sum stores the number of terms of each element, and the size of a term."""

    terms: int
    scale: float

    @property
    def expected(self) -> float:
        return math.sqrt(self.terms) * self.scale


class RoundingFloors:
    """RoundingFloors returns the floors of the tensors of one dump.

    Args:
        source: The dump; without layers or statistics it has no floors.
    """

    def __init__(self, source: DumpSource) -> None:
        self._source = source
        self._known = frozenset(source.keys())
        layers = source.manifest.layers
        composites = {layer.parent for layer in layers}
        self._is_used = bool(layers)
        self._makers = {name: layer for layer in layers for name in layer.outputs}
        self._readers = _by_name(layers, composites, lambda layer: layer.inputs)
        self._users = _by_name(layers, composites, lambda layer: layer.params)

    def floor(self, key: str, dtype: str) -> Floor | None:
        """Returns the floor of a tensor; None where it has none.

        Args:
            key: Its key.
            dtype: The coarser dtype that it was computed in.
        """
        if dtype_class(dtype) not in ("float", "complex"):
            return None
        if not self._is_used:
            return None
        entry = self._source.entry(self._source.resolve(key))
        return self._own(entry, dtype) or self._passed(entry, dtype)

    def _passed(self, entry: Entry, dtype: str, operations: int = _FOLLOWED) -> Floor | None:
        """Returns the floor of what operations make of a gradient that has a floor and cancels; None for any other."""
        behind = self._behind(entry) if operations else None
        if behind is None or _l2(behind) == 0:
            return None
        floor = self._own(behind, dtype)
        if floor is None:
            floor = self._passed(behind, dtype, operations - 1)
        if floor is None or _l2(behind) > floor.cancelled:
            return None
        share = _l2(entry) / _l2(behind)
        return replace(floor, l2=share * floor.l2, cancelled=share * floor.cancelled)

    def _behind(self, entry: Entry) -> Entry | None:
        """Returns the one gradient that a gradient is made of, by one operation; None where it is made otherwise."""
        if entry.family != ACTIVATION_GRAD:
            return None
        readers = self._readers.get(entry.name, [])
        if len(readers) != 1 or not readers[0].operation:
            return None
        outputs = list(self._entries(ACTIVATION_GRAD, readers[0].outputs))
        return outputs[0] if len(outputs) == 1 else None

    def _own(self, entry: Entry, dtype: str) -> Floor | None:
        """Returns the floor of a tensor by the sums that make it; None where none is known."""
        sums = [each for each in self._sums(entry) if each.scale > 0 and math.isfinite(each.scale)]
        if not sums:
            return None
        largest = max(sums, key=lambda each: each.expected)
        expected, epsilon = largest.expected * math.sqrt(math.prod(entry.shape)), machine_epsilon(dtype)
        if epsilon > NARROW:
            floor = _MARGIN * epsilon * expected
            return Floor(l2=floor, cancelled=2 * floor, terms=largest.terms)
        floor = _MARGIN * epsilon * math.sqrt(min(largest.terms, _BLOCK)) * expected
        return Floor(l2=floor, cancelled=_CANCELLED * expected, terms=largest.terms)

    def _sums(self, entry: Entry) -> Iterator[_Sum]:
        if entry.family in (PARAM_GRAD, EXAMPLE_GRAD):
            for layer in self._users.get(entry.name, ()):
                yield from self._of_parameter(entry, layer)
        elif entry.family in (ACTIVATION_GRAD, INPUT_GRAD):
            for layer in self._readers.get(entry.name, ()):
                outputs = self._scales(ACTIVATION_GRAD, layer.outputs)
                yield from self._of_product(entry, layer, max(outputs, default=0.0))
                yield from self._of_broadcast(entry, layer)
        elif entry.family == ACTIVATION and entry.name in self._makers:
            layer = self._makers[entry.name]
            inputs = [*self._scales(ACTIVATION, layer.inputs), *self._scales(INPUT, layer.inputs)]
            yield from self._of_product(entry, layer, max(inputs, default=0.0))

    def _of_parameter(self, entry: Entry, layer: Layer) -> Iterator[_Sum]:
        """Yields the sum over positions of a layer's output that makes the gradient of a parameter."""
        shape = entry.shape[1:] if entry.family == EXAMPLE_GRAD else entry.shape
        inputs = [*self._entries(ACTIVATION, layer.inputs), *self._entries(INPUT, layer.inputs)]
        exact = any(dtype_class(each.dtype) != "float" for each in inputs)  # a table that indices are looked up in
        scale = max(map(_rms, inputs), default=1.0) if len(shape) > 1 and not exact else 1.0
        for output in self._entries(ACTIVATION_GRAD, layer.outputs):
            size = math.prod(output.shape)
            terms = size // math.prod(shape) if exact else size // _shared(shape, output.shape)
            yield _Sum(terms=max(1, terms), scale=_rms(output) * scale)

    def _of_product(self, entry: Entry, layer: Layer, scale: float) -> Iterator[_Sum]:
        """Yields the sums of products with the kernels of a layer."""
        for kernel in self._entries(PARAM, layer.params):
            if len(kernel.shape) > 1:
                terms = math.prod(kernel.shape) // _shared(kernel.shape, entry.shape)
                yield _Sum(terms=max(1, terms), scale=scale * _rms(kernel))

    def _of_broadcast(self, entry: Entry, layer: Layer) -> Iterator[_Sum]:
        """Yields the sum over the elements of an operation's output that each element of an operand was copied to."""
        if not layer.operation or layer.primitive not in _BROADCASTING:
            return
        others = [name for name in layer.inputs if name != entry.name] if layer.primitive == "mul" else []
        factor = math.prod(self._scales(ACTIVATION, others)) if others else 1.0
        for output in self._entries(ACTIVATION_GRAD, layer.outputs):
            terms = math.prod(output.shape) // max(1, math.prod(entry.shape))
            if terms > 1:
                yield _Sum(terms=terms, scale=_rms(output) * factor)

    def _scales(self, family: str, names: Iterable[str]) -> list[float]:
        return [_rms(entry) for entry in self._entries(family, names) if dtype_class(entry.dtype) == "float"]

    def _entries(self, family: str, names: Iterable[str]) -> list[Entry]:
        keys = (key_of(family, name) for name in names)
        return [self._source.entry(self._source.resolve(key)) for key in keys if key in self._known]


class PairFloors:
    """PairFloors returns the floors of pairs: those of the reference, or of the candidate where that knows of none.

    A program knows the floor of a tensor by the layers around it, which a port may have no scopes for.

    Args:
        ref: The reference.
        cand: The candidate.
    """

    def __init__(self, ref: DumpSource, cand: DumpSource) -> None:
        self._sources = ref, cand
        self._floors = RoundingFloors(ref), RoundingFloors(cand)
        self._in_ref = bool(ref.manifest.layers)

    def floor(self, ref: str, cand: Sequence[str], dtype: str) -> Floor | None:
        """Returns the floor of a pair; None where it has none.

        Args:
            ref: The reference's key.
            cand: The candidate's keys, of which the tensor is made.
            dtype: The coarser dtype that it was computed in.
        """
        own, other = self._floors
        if (known := own.floor(ref, dtype)) is not None:
            return known
        found = other.floor(cand[0], dtype)
        if found is None or not self._in_ref:
            return found
        size, whole = (
            math.prod(each.entry(key).shape) for each, key in zip(self._sources, (ref, cand[0]), strict=True)
        )
        share = math.sqrt(size / max(1, whole))  # the norm of a part, of elements that have as many terms each
        if len(cand) > 1 or share > 1:
            return None
        return replace(found, l2=share * found.l2, cancelled=share * found.cancelled)


def is_within(evidence: PairEvidence, floor: Floor) -> bool:
    """Returns whether two tensors, of terms that cancel, differ by no more than a floor."""
    rel_l2 = as_float(evidence.metrics.get("rel_l2", 0.0))
    if evidence.distance is None or rel_l2 <= 0:
        return False
    return is_rounding(evidence.distance, evidence.distance / rel_l2, floor)


def is_rounding(distance: float, l2: float, floor: Floor) -> bool:
    """Returns whether a difference is rounding of terms that cancel.

    Args:
        distance: The l2 norm of the difference.
        l2: That of the reference.
        floor: The floor of the tensor.
    """
    return distance <= floor.l2 and l2 <= floor.cancelled


def _by_name(
    layers: Iterable[Layer], composites: set[str | None], names: Callable[[Layer], Iterable[str]]
) -> Mapping[str, list[Layer]]:
    """Returns the innermost layers by the names that they have to do with."""
    found: defaultdict[str, list[Layer]] = defaultdict(list)
    around: defaultdict[str, list[Layer]] = defaultdict(list)
    for layer in layers:
        for name in names(layer):
            (around if layer.path in composites else found)[name].append(layer)
    return {**around, **found}


def _rms(entry: Entry) -> float:
    value = entry.stats.get("rms")
    if not isinstance(value, int | float | str):
        return 0.0
    return as_float(value)


def _l2(entry: Entry) -> float:
    return _rms(entry) * math.sqrt(math.prod(entry.shape))


def _shared(shape: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Returns the largest size that is in both shapes: the features of a kernel that the other tensor has, too."""
    return max((size for size in shape if size in other), default=1)
