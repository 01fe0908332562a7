"""Places are what an error of an isolated candidate is charged to: a layer, or the code before it that no layer has.

A segment between two values of the reference has the equations of the layer that returns its end, and before these what
the module around both layers computes between them. A layer that reads other values than in the reference, or returns
the right gradient with respect to what it reads, is not at fault: the code before it is. That is named after the layer
which reads its result, `before block/norm`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum

from gradscope.capturing.isolate.boundaries import Boundaries
from gradscope.capturing.isolate.layer_inputs import CallAt, LayerInputs
from gradscope.comparison.follow_ups.isolation import Place
from gradscope.naming import PARAM
from gradscope.naming.paths import BEFORE
from gradscope.primitive_groups import FUNCTIONS_OF_AN_ELEMENT
from gradscope.tracing.dataflow.between_known_values import Segment
from gradscope.tracing.jaxpr.frames import OPERAND, Frame, source_in, variable_of
from gradscope.tracing.jaxpr.iterations import ValueAt
from gradscope.tracing.jaxpr.jaxcompat import CUSTOM_RULES
from gradscope.tracing.layers.parameter_views import ParameterOrigins
from gradscope.tracing.tracer import Trace


class _Doubt(IntEnum):
    """A `_Doubt` is whether a place made an error: it did, it may have, or it got zeros, of which it makes zeros."""

    NONE = 0
    SOME = 1
    LARGE = 2


class Places:
    """`Places` tell which code made an error: a layer's own, or that before it.

    Args:
        trace: The candidate's loss.
        boundaries: The ends of the segments between the values that the reference has.
        readers: The values that layers read and the reference does not have, each with its readers.
        inputs: Whether those values agree with the reference's.
    """

    def __init__(
        self, trace: Trace, boundaries: Boundaries, readers: Mapping[ValueAt, Sequence[CallAt]], inputs: LayerInputs
    ) -> None:
        self._trace = trace
        self._boundaries = boundaries
        self._readers = readers
        self._inputs = inputs
        self._frames = {frame.key: frame for frame in trace.root.walk()}
        params = {at: leaf.name for at, leaf in enumerate(trace.arguments) if leaf.family == PARAM}
        self._views = ParameterOrigins(params)
        self._makers = {site.value: site.names[0].path for site in trace.sites if site.names}
        self._between_known = boundaries.pinned.segments(trace.root, readers)
        self._segments: dict[ValueAt, Segment] = {}
        self._inside: dict[ValueAt, tuple[ValueAt, ...]] = {}
        self._agreeing: dict[tuple[ValueAt, bool], bool | None] = {}
        self._ends: dict[str, dict[ValueAt, None]] = {}

    def of(self, ends: Iterable[ValueAt], gradient_of: ValueAt | None) -> tuple[str, ...]:
        """Returns the places that may have made an error of a tensor, in execution order.

        Of those that may have returned a wrong gradient, the ones that are known to have are the only ones. Else, those
        with a derivative rule of their own come first.

        Args:
            ends: The boundaries of the segments that made the tensor.
            gradient_of: The value with respect to which it is a gradient; None where it is itself the end of a segment.
        """
        found: dict[ValueAt, _Doubt] = {}
        for end in self._boundaries.ordered(ends):
            for made, doubt in self._making(end, gradient_of):
                found[made] = min(doubt, found.get(made, doubt))
        least = min(found.values(), default=_Doubt.NONE)
        names = dict.fromkeys(self._place(made) for made, doubt in found.items() if doubt == least)
        return tuple(names if gradient_of is None else sorted(names, key=lambda name: not self._has_rule(name)))

    def rearranging(self, ends: Iterable[ValueAt]) -> tuple[str, ...]:
        """Returns the code before layers that may have made an error which no root mean square shows.

        Code that merges heads in another order, or turns a sign, changes neither that of the value nor of its gradient.

        Args:
            ends: The boundaries of the segments that made the tensor.
        """
        between = (value_at for end in self._boundaries.ordered(ends) for value_at in self._between(end))
        return tuple(dict.fromkeys(map(self._place, filter(self._may_rearrange, between))))

    def all(self) -> dict[str, Place]:
        """Returns every layer and the code before layers that `of` has returned, by name in execution order."""
        layers = self._boundaries.layers()
        found = [(rank, name, Place(lines=self._lines(name) or lines)) for name, (rank, lines) in layers.items()]
        found += [self._code_before(name) for name in self._ends if name not in layers]
        return {name: place for _, name, place in sorted(found, key=lambda each: each[0])}

    def _code_before(self, name: str) -> tuple[float, str, Place]:
        """Returns the rank, the name and the place of the code before a layer."""
        values = self._ends[name]
        call, iteration = self._readers[next(iter(values))][0]
        rank = self._boundaries.order.rank(call.frame.loops, call.order, iteration)
        around = call.parent
        place = Place(
            lines=self._lines(name),
            reads=tuple(dict.fromkeys(each for value_at in values for each in self._read_by(value_at))),
            inside=None if around is None else str(around.path.at(iteration[: len(around.frame.loops)])),
        )
        return rank - 0.5, name, place

    def _read_by(self, value_at: ValueAt) -> Iterator[str]:
        """Yields the names of the layers and inputs that a value is computed from; parameters are not among them."""
        for read in self._segment(value_at).read:
            name = self._name(read) if read in self._readers else self._boundaries.name_of_read(read)
            if name is not None:
                yield name

    def _lines(self, name: str) -> tuple[str, ...]:
        """Returns `file:line` of a place's equations, in program order; none for a place that `of` has not returned.

        A mask or an index has no gradient, and may be the fault.
        """
        found: dict[str, int] = {}
        selecting = (value_at for end in self._ends.get(name, ()) for value_at in self._between_known.selecting(end))
        for frame, number in (*self._equations(name), *self._equations_of(selecting)):
            source = source_in(frame, frame.jaxpr.eqns[number])
            if source is not None:
                found[source] = min(found.get(source, frame.orders[number]), frame.orders[number])
        return tuple(sorted(found, key=lambda source: found[source]))

    def _has_rule(self, name: str) -> bool:
        """Returns whether a place has a derivative rule or a stop of its own, and not only what JAX differentiates."""
        primitives = (frame.jaxpr.eqns[number].primitive.name for frame, number in self._equations(name))
        return any(each in CUSTOM_RULES or each == "stop_gradient" for each in primitives)

    def _equations(self, name: str) -> Iterator[tuple[Frame, int]]:
        """Yields the equations of a place, each with its frame; none for a place that `of` has not returned.

        Those that only view a parameter are left out: they may be anywhere.
        """
        for end in self._ends.get(name, ()):
            yield from self._equations_to(end)

    def _equations_to(self, end: ValueAt) -> Iterator[tuple[Frame, int]]:
        return self._equations_of(self._segment(end).made)

    def _equations_of(self, values: Iterable[ValueAt]) -> Iterator[tuple[Frame, int]]:
        for value, _ in values:
            frame = self._frames[value.frame]
            if value.equation != OPERAND and not self._views.names(frame, variable_of(frame, value)):
                yield frame, value.equation

    def _making(self, end: ValueAt, gradient_of: ValueAt | None) -> Iterator[tuple[ValueAt, _Doubt]]:
        """Yields the ends of the code that may have made an error of a tensor, in the segment to one end."""
        between = self._between(end)
        wrong = [value_at for value_at in between if self._is_first_wrong(value_at)]
        if wrong:
            yield from ((value_at, _Doubt.NONE) for value_at in wrong)
            return
        made = [(end, _Doubt.SOME)] if gradient_of is None else list(self._returning(end, gradient_of))
        least = min((doubt for _, doubt in made), default=_Doubt.SOME)
        yield from (*made, *((value_at, least) for value_at in between if self._may_be_wrong(value_at)))

    def _returning(
        self, end: ValueAt, gradient_of: ValueAt, behind: tuple[ValueAt, ...] = ()
    ) -> Iterator[tuple[ValueAt, _Doubt]]:
        """Yields the ends of the code that may return a wrong gradient for a value, on the way back from a segment's.

        Args:
            end: The segment's end.
            gradient_of: The value.
            behind: The ends of the code on the way that may have rearranged the gradient.
        """
        if end in self._readers and self._may_rearrange(end):
            behind = (*behind, end)
        if gradient_of in self._segment(end).read:
            hidden = end in self._readers and self._has_right_sizes(end) and behind
            for each in behind if hidden else (end,):
                zeros = each in self._readers and self._inputs.gets_zeros(each)
                yield each, _Doubt.LARGE if zeros else _Doubt.SOME
        for value_at in self._segment(end).read:
            if value_at in self._readers and self._leads(gradient_of, value_at):
                agrees = self._agrees(value_at, gradient=True)
                if agrees is not True:
                    yield end, _Doubt.SOME if agrees is None else _Doubt.NONE
                if agrees is not False:
                    yield from self._returning(value_at, gradient_of, behind)

    def _leads(self, source: ValueAt, value_at: ValueAt) -> bool:
        return any(source in self._segment(each).read for each in (value_at, *self._between(value_at)))

    def _between(self, end: ValueAt) -> Sequence[ValueAt]:
        """Returns the inputs of layers that a value is computed from, and that the reference does not have."""
        if end not in self._inside:
            found: dict[ValueAt, None] = {}
            waiting = [end]
            while waiting:
                fresh = [each for each in self._segment(waiting.pop()).read if each in self._readers]
                waiting += [each for each in fresh if each not in found]
                found |= dict.fromkeys(fresh)
            self._inside[end] = tuple(found)
        return self._inside[end]

    def _is_first_wrong(self, value_at: ValueAt) -> bool:
        """Returns whether a value differs and nothing that it is computed from does, as far as that is known."""
        made_of = self._between(value_at)
        return self._agrees(value_at, gradient=False) is False and not any(
            self._agrees(each, gradient=False) is False for each in made_of
        )

    def _may_be_wrong(self, value_at: ValueAt) -> bool:
        """Returns whether it is not known that a value agrees which is computed from others, and no constant."""
        return self._agrees(value_at, gradient=False) is None and bool(self._segment(value_at).read)

    def _has_right_sizes(self, value_at: ValueAt) -> bool:
        """Returns whether the sizes of a value, which is no constant, and of its gradient are the reference's."""
        agreeing = (self._agrees(value_at, gradient=gradient) is True for gradient in (False, True))
        return all(agreeing) and bool(self._segment(value_at).read)

    def _may_rearrange(self, value_at: ValueAt) -> bool:
        """Returns whether the code before a layer may have made an error which leaves sizes as they are."""
        return self._has_right_sizes(value_at) and not self._only_applies_functions(value_at)

    def _only_applies_functions(self, value_at: ValueAt) -> bool:
        """Returns whether code keeps each element in its place, and a fault in it changes sizes."""
        equations = list(self._equations_to(value_at))
        return bool(equations) and all(
            frame.jaxpr.eqns[number].primitive.name in FUNCTIONS_OF_AN_ELEMENT for frame, number in equations
        )

    def _agrees(self, value_at: ValueAt, *, gradient: bool) -> bool | None:
        if (value_at, gradient) not in self._agreeing:
            self._agreeing[value_at, gradient] = self._inputs.agrees(value_at, gradient=gradient)
        return self._agreeing[value_at, gradient]

    def _segment(self, end: ValueAt) -> Segment:
        if end not in self._segments:
            self._segments[end] = self._between_known.segment(end)
        return self._segments[end]

    def _place(self, end: ValueAt) -> str:
        """Returns the name of the place whose code ends at a boundary or at the input of a layer."""
        name = self._name(end)
        self._ends.setdefault(name, {})[end] = None
        return name

    def _name(self, end: ValueAt) -> str:
        if end not in self._readers:
            return self._boundaries.name(end)
        if end.value in self._makers:  # a layer whose output the reference does not have
            return str(self._makers[end.value].at(end.iteration))
        call, iteration = self._readers[end][0]
        return f"{BEFORE}{call.path.at(iteration)}"
