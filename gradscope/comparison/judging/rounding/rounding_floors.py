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
    mean that a layer returns     positions of its input        input, divided by their number

Rounding of a sum whose terms cancel grows with the partial sums, as sqrt(n) each, and n roundings of that size add up
to n. Sums of more than `BLOCK` terms are added in blocks. Types of up to 16 bits are added in float32, so that only
their terms are rounded, and the factor sqrt(min(n, BLOCK)) is 1. On CPUs, XLA adds in their own type what it does not
multiply, as the gradient that arrives at a bias.

A floor counts only where the terms of a tensor cancel: where its norm is below a tenth of what is expected, and for
types of up to 16 bits below two floors. A real error in a tensor of ordinary size is never below the floor. What one
operation makes of such a gradient is rounding of the same relative size, and has a floor in proportion; so has the
gradient of a parameter whose layer's output has such a gradient. Only layers with parameters and operations that
broadcast state the size of a term. The gradient of another value `v`, as one that code without a scope reads, is
compared with that of what is made of it, `|dL/dy| |y| / |v|`, and those of what is read beside it, `FLAT * epsilon` of
which is rounding alone; its floor is an estimate. The terms of a sum may be differences of larger values, too, and what
rounding makes of them it makes of the sum (`term_rounding`). Other tensors have no floor; parameters and inputs are not
computed, and have none.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from gradscope.comparison.judging.rounding.floor import UNRELATED, Floor
from gradscope.comparison.judging.rounding.tensor_sizes import TensorSizes, TermSum, l2_of, rms_of, shared_size
from gradscope.comparison.judging.rounding.term_rounding import LayersAround, TermRounding
from gradscope.comparison.precision import dtype_class, machine_epsilon
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.manifest import Entry, Layer
from gradscope.naming import (
    ACTIVATION,
    ACTIVATION_GRAD,
    AUX,
    EXAMPLE_GRAD,
    INPUT,
    INPUT_GRAD,
    PARAM,
    PARAM_GRAD,
    key_of,
)

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


class RoundingFloors:
    """RoundingFloors returns the floors of the tensors of one dump.

    Args:
        source: The dump; without layers or statistics it has no floors.
        is_added_in_own_type: Whether numbers of up to 16 bits are added in their own type, as XLA does on CPUs.
    """

    def __init__(self, source: DumpSource, *, is_added_in_own_type: bool = False) -> None:
        layers = source.manifest.layers
        composites = {layer.parent for layer in layers}
        self._source = source
        self._is_added_in_own_type = is_added_in_own_type
        self._around = LayersAround(source)
        self._terms = TermRounding(self._around)
        self._is_used = bool(layers)
        self._known_sizes: dict[tuple[str, int], TensorSizes] = {}
        # What a block returns is more than one sum, whatever kernels are inside it.
        self._makers = {name: layer for layer in layers if layer.path not in composites for name in layer.outputs}
        self._by_path = {layer.path: layer for layer in layers}

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
        own = self._own(entry, dtype)
        own = None if own is None else self._with_terms(own, entry, dtype)
        if own is not None and entry.family != PARAM_GRAD:  # a sum of what is rounding tells no size of its terms
            return own
        found = [own, self._passed(entry, dtype), self._terms.of_value(entry, dtype)]
        return max(filter(None, found), key=_reach, default=None)

    def summed(self, key: str) -> Sequence[str]:
        """Returns the keys of the gradients whose sum the gradient of a bias is; none for other tensors.

        Args:
            key: Its key.
        """
        entry = self._source.entry(self._source.resolve(key))
        users = self._around.users.get(entry.name, ()) if entry.family == PARAM_GRAD and len(entry.shape) == 1 else ()
        names = (name for layer in users for name in layer.outputs)
        return [key_of(each.family, each.name) for each in self._around.entries(ACTIVATION_GRAD, names)]

    def _with_terms(self, own: Floor, entry: Entry, dtype: str) -> Floor:
        """Returns the floor of a gradient that is a sum, whose terms may be differences of larger values themselves.

        What rounding makes of the terms, beside their size, it makes of their sum.
        """
        share, largest = self._terms.share(entry, dtype), self._largest(entry)
        if not share or largest is None:
            return own
        count = math.prod(entry.shape)
        rounded = largest.expected * math.sqrt(count) * share
        if share * UNRELATED >= 1:  # all of it is rounding
            l2 = rounded / min(share, 1.0)
            return Floor(l2=l2, cancelled=l2, terms=own.terms, is_estimate=True, elements=count)
        return replace(own, l2=own.l2 + _MARGIN * rounded) if l2_of(entry) <= own.cancelled else own

    def _passed(self, entry: Entry, dtype: str, operations: int = _FOLLOWED) -> Floor | None:
        """Returns the floor of what operations make of a gradient that has a floor and cancels; None for any other."""
        behind = self._behind(entry) if operations else None
        if behind is None or l2_of(behind) == 0:
            return None
        floor = self._own(behind, dtype) or self._passed(behind, dtype, operations - 1)
        floor = floor or self._terms.of_value(behind, dtype)
        if floor is None or l2_of(behind) > floor.cancelled * (UNRELATED if floor.is_estimate else 1):
            return None
        # A sum of rounding may be shorter than such sums are.
        count, largest = math.prod(entry.shape), self._largest(entry) if entry.family == PARAM_GRAD else None
        length = max(l2_of(entry), 0.0 if largest is None else largest.expected * math.sqrt(count))
        return replace(floor.times(length / l2_of(behind)), elements=count, is_passed=True)

    def _behind(self, entry: Entry) -> Entry | None:
        """Returns the one gradient that a gradient is made of, by one operation; None where it is made otherwise.

        That of a parameter is made of the gradient of the output of its layer.
        """
        if entry.family == PARAM_GRAD:
            outputs = [name for layer in self._around.users.get(entry.name, ())[:2] for name in layer.outputs[:2]]
            found = self._around.entries(ACTIVATION_GRAD, outputs) if len(outputs) == 1 else []
            return found[0] if found else None
        if entry.family != ACTIVATION_GRAD:
            return None
        readers = self._around.readers.get(entry.name, [])
        return self._output_gradient(readers[0]) if len(readers) == 1 else None

    def _own(self, entry: Entry, dtype: str) -> Floor | None:
        """Returns the floor of a tensor by the sums that make it; None where none is known."""
        largest = self._largest(entry)
        if largest is None:
            return None
        floor = floor_of_sum(largest, math.prod(entry.shape), dtype)
        if not self._is_added_in_own_type or largest.is_of_products or machine_epsilon(dtype) <= NARROW:
            return floor
        return replace(floor, l2=floor.l2 * math.sqrt(min(largest.terms, _BLOCK)))

    def _largest(self, entry: Entry) -> TermSum | None:
        """Returns the largest of the sums that make a tensor; None where none is known."""
        sums = (each for each in self._sums(entry) if each.scale > 0 and math.isfinite(each.scale))
        return max(sums, key=lambda each: each.expected, default=None)

    def _sums(self, entry: Entry) -> Iterator[TermSum]:
        if entry.family in (PARAM_GRAD, EXAMPLE_GRAD):
            for layer in self._around.users.get(entry.name, ()):
                yield from self._of_parameter(entry, layer)
        elif entry.family in (ACTIVATION_GRAD, INPUT_GRAD):
            for layer in self._around.readers.get(entry.name, ()):
                yield from self._of_product(entry, layer, self._scale(ACTIVATION_GRAD, layer.outputs))
                yield from self._of_broadcast(entry, layer)
        elif entry.family == ACTIVATION and entry.name in self._makers:
            layer = self._makers[entry.name]
            scale = max(self._scale(ACTIVATION, layer.inputs), self._scale(INPUT, layer.inputs))
            yield from self._of_product(entry, layer, scale)
        elif entry.family == AUX and len(entry.shape) == 1:
            yield from self._of_mean(entry)

    def _of_mean(self, entry: Entry) -> Iterator[TermSum]:
        """Yields the sums that make the mean of what a layer reads, as that of a batch norm is, by its name.

        The mean of what a layer without a bias makes of values whose mean is zero is zero but for rounding.
        """
        scope = entry.name.rpartition("/")[0]
        while scope and scope not in self._by_path:  # `norm` of `batch_stats/norm`
            scope = scope.partition("/")[2]
        if scope:
            for shape, rms in self._sizes(ACTIVATION, self._by_path[scope].inputs).by_shape.items():
                if (count := math.prod(shape) // math.prod(entry.shape)) > 1 and entry.shape[0] in shape:
                    yield TermSum(terms=count, scale=rms / count)

    def _of_parameter(self, entry: Entry, layer: Layer) -> Iterator[TermSum]:
        """Yields the sum over positions of a layer's output that makes the gradient of a parameter."""
        shape = entry.shape[1:] if entry.family == EXAMPLE_GRAD else entry.shape
        inputs = [self._sizes(family, layer.inputs) for family in (ACTIVATION, INPUT)]
        exact = any(each.exact for each in inputs)  # a table that indices are looked up in
        known = [each.largest for each in inputs if each.largest is not None]
        # What is added to zeros, as positions to queries that have read nothing, has a gradient for all that.
        scale = (max(known, default=1.0) or 1.0) if len(shape) > 1 and not exact else 1.0
        for output, rms in self._sizes(ACTIVATION_GRAD, layer.outputs).by_shape.items():
            size = math.prod(output)
            terms = size // (math.prod(shape) or 1) if exact else size // shared_size(shape, output)
            yield TermSum(terms=max(1, terms), scale=rms * scale, is_of_products=len(shape) > 1)

    def _of_product(self, entry: Entry, layer: Layer, scale: float) -> Iterator[TermSum]:
        """Yields the sums of products with the kernels of a layer."""
        for kernel, rms in self._sizes(PARAM, layer.params).by_shape.items():
            if len(kernel) > 1:
                terms = math.prod(kernel) // shared_size(kernel, entry.shape)
                yield TermSum(terms=max(1, terms), scale=scale * rms, is_of_products=True)

    def _of_broadcast(self, entry: Entry, layer: Layer) -> Iterator[TermSum]:
        """Yields the sum over the elements of an operation's output that each element of an operand was copied to."""
        output = self._output_gradient(layer)
        if output is None or layer.primitive not in _BROADCASTING or len(layer.inputs) > 2:
            return
        others = [name for name in layer.inputs if name != entry.name] if layer.primitive == "mul" else []
        factor = math.prod(map(rms_of, self._around.entries(ACTIVATION, others)))
        terms = math.prod(output.shape) // max(1, math.prod(entry.shape))
        if terms > 1:
            yield TermSum(terms=terms, scale=rms_of(output) * factor)

    def _output_gradient(self, layer: Layer) -> Entry | None:
        """Returns the gradient of the one output of an operation; None for another layer."""
        found = (
            self._around.entries(ACTIVATION_GRAD, layer.outputs) if layer.operation and len(layer.outputs) == 1 else []
        )
        return found[0] if found else None

    def _scale(self, family: str, names: Sequence[str]) -> float:
        """Returns the largest root mean square of the floating-point tensors of some names."""
        return self._sizes(family, names).largest_float

    def _sizes(self, family: str, names: Sequence[str]) -> TensorSizes:
        """Returns the sizes of the tensors of some names, which a layer has: they are read once for all of them."""
        place = family, id(names)
        if place not in self._known_sizes:
            self._known_sizes[place] = TensorSizes.of(self._around.entries(family, names))
        return self._known_sizes[place]


def floor_of_sum(sums: TermSum, size: int, dtype: str) -> Floor:
    """Returns the floor of a tensor whose elements are sums.

    Args:
        sums: The terms of each element.
        size: The number of elements.
        dtype: The coarser dtype that they are computed in.
    """
    expected, epsilon = sums.expected * math.sqrt(size), machine_epsilon(dtype)
    if epsilon > NARROW:
        floor = _MARGIN * epsilon * expected
        return Floor(l2=floor, cancelled=2 * floor, terms=sums.terms)
    floor = _MARGIN * epsilon * math.sqrt(min(sums.terms, _BLOCK)) * expected
    return Floor(l2=floor, cancelled=_CANCELLED * expected, terms=sums.terms)


def _reach(floor: Floor) -> float:
    """Returns how far rounding may reach, where it has nothing in common in two programs."""
    return floor.l2 * (UNRELATED if floor.is_passed else 1)
