"""Boundaries are the values at which segments of an isolated candidate end: pinned values and the loss's outputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from gradscope import naming
from gradscope.arrays.dtypes import is_key
from gradscope.capturing.execution.order import ExecutionOrder
from gradscope.capturing.isolate.pinned_values import PinnedValues
from gradscope.naming.paths import LOSS
from gradscope.tracing.jaxpr.frames import OPERAND, Frame, ValueKey, iterations, operands, resolve
from gradscope.tracing.jaxpr.iterations import ValueAt
from gradscope.tracing.tracer import Trace


class Boundaries:
    """`Boundaries` map the pinned values and outputs of a candidate to its layers and to their readers.

    Args:
        trace: The candidate's loss.
        pinned: The pinned values of its layers.

    Attributes:
        pinned: The pinned values.
        order: The execution order.
        loss: The loss's own value; None where it is a constant.
        outputs: The names of the outputs that are not a layer's.
    """

    def __init__(self, trace: Trace, pinned: PinnedValues) -> None:
        self._trace = trace
        self.pinned = pinned
        self.order = ExecutionOrder.of_trace(trace)
        value = resolve(trace.root, trace.root.jaxpr.outvars[0])
        self.loss = None if value is None else ValueAt(value, ())
        self.outputs = dict(self._named_outputs())
        # Only the segments of values that have a cotangent, or should have one, return cotangents.
        self._pulled = {*pinned.with_cotangent, *pinned.without_cotangent, *([] if self.loss is None else [self.loss])}
        self._readers = pinned.segments(trace.root).readers(self._pulled)

    def readers(self, value_at: ValueAt) -> Sequence[ValueAt]:
        """Returns the boundaries whose segments read a pinned value or an argument, and return a cotangent to it."""
        return self._readers.get(value_at, ())

    def readers_of_slices(self, argument: ValueAt) -> dict[tuple[int, ...], tuple[ValueAt, ...]]:
        """Returns the readers of each slice of an argument that loops read slice by slice; none for any other.

        Args:
            argument: The argument. What reads it as a whole is a reader of every slice.

        Returns:
            The readers by the index of the slice, which has a number for each of the loops inside one another that read
            slices.
        """
        slices = dict(self._slices_of(argument.value, {(): ()}))
        if not slices:
            return {}
        readers = self.pinned.segments(self._trace.root, slices).readers(self._pulled)
        depth = max(map(len, slices.values()))
        found = {index: [*readers.get(argument, ())] for index in slices.values() if len(index) == depth}
        for slice_at, index in slices.items():
            inside = [index] if len(index) == depth else [each for each in found if each[: len(index)] == index]
            for each in inside:
                found[each] += readers.get(slice_at, ())
        return {index: tuple(each) for index, each in found.items()}

    def _slices_of(
        self, value: ValueKey, indices: Mapping[naming.IterationIndex, tuple[int, ...]]
    ) -> Iterator[tuple[ValueAt, tuple[int, ...]]]:
        """Yields the slices of an argument that loops receive of a value, each with its index in the argument.

        Args:
            value: The argument, or slices of it.
            indices: The index of the value in each iteration of the loops around it.
        """
        around = len(next(iter(indices)))
        for frame in self._trace.root.walk():
            loop = frame.transfer.loop
            if loop is not None and loop.length is not None and not loop.parallel:
                for variable in _receiving(frame, value):
                    received = ValueKey(frame.key, OPERAND, variable)
                    inside = {each: (*indices[each[:around]], each[-1]) for each in iterations(frame.loops)}
                    yield from ((ValueAt(received, iteration), index) for iteration, index in inside.items())
                    if inside:
                        yield from self._slices_of(received, inside)

    def ordered(self, boundaries: Iterable[ValueAt]) -> list[ValueAt]:
        """Returns some boundaries in execution order."""
        return sorted(boundaries, key=self._rank)

    def layers(self) -> dict[str, tuple[int, tuple[str, ...]]]:
        """Returns the rank of each layer and each further output, with the source of a layer, by name."""
        known = {layer.path: layer.source for layer in self._trace.layers}
        found: dict[str, tuple[int, tuple[str, ...]]] = {}
        for value_at in sorted(self.pinned.keys, key=self._rank):
            source = known[self.pinned.sites[value_at.value].names[0].path]
            found.setdefault(self.name(value_at), (self._rank(value_at), () if source is None else (source,)))
        return found | dict.fromkeys(self.outputs.values(), (self.order.rank_after_all, ()))

    def name(self, boundary: ValueAt) -> str:
        """Returns the name of the layer or output that a boundary is."""
        if boundary in self.outputs:
            return self.outputs[boundary]
        return self.pinned.name(boundary)

    def name_of_read(self, value_at: ValueAt) -> str | None:
        """Returns the name of the layer or the key of the input that a value is; None for a parameter."""
        if value_at in self.pinned.keys:
            return self.name(value_at)
        leaf = self._trace.arguments[value_at.value.position]
        return naming.key_of(leaf.family, leaf.name) if leaf.family == naming.INPUT else None

    def _named_outputs(self) -> Iterator[tuple[ValueAt, str]]:
        names = (LOSS, *(naming.key_of(naming.AUX, leaf.name) for leaf in self._trace.auxiliary))
        for name, atom in zip(names, self._trace.root.jaxpr.outvars, strict=True):
            value = resolve(self._trace.root, atom)
            value_at = None if value is None else ValueAt(value, ())
            if value_at is not None and value_at not in self.pinned.keys and not is_key(str(atom.aval.dtype)):
                yield value_at, name

    def _rank(self, boundary: ValueAt) -> int:
        if boundary in self.outputs:
            return self.order.rank_after_all
        site = self.pinned.sites[boundary.value]
        return self.order.rank(site.loops, site.order, boundary.iteration)


def _receiving(loop: Frame, value: ValueKey) -> Iterator[int]:
    """Yields the positions of the variables of a loop's frame that receive a slice of a value in each iteration."""
    for variable, (entry, atom) in enumerate(zip(loop.transfer.inputs, operands(loop), strict=True)):
        sliced = entry is not None and entry.how == "slice"
        if sliced and loop.parent is not None and atom is not None and resolve(loop.parent, atom) == value:
            yield variable
