"""Random masks make elements of a value inside a model zero, as a dropout does.

A mask compares random numbers that the program draws with a limit: what chooses by it between the value and zero, or
multiplies the value by it, drops the elements for which it is false. Random numbers that are compared with one another
choose so many of several, as those of a router do, and a mask of the terms of a loss leaves the model whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final, NamedTuple

from gradscope.primitive_groups import COPIES, RANDOM
from gradscope.tracing.dataflow.forward import ForwardFlow, FrameVariable, Step
from gradscope.tracing.jaxpr.frames import OPERAND, Frame, ValueKey, made_at, resolve
from gradscope.tracing.jaxpr.jaxcompat import CUSTOM_RULES, Atom, Equation, is_literal
from gradscope.tracing.layers.sites import Site
from gradscope.tracing.lookup.constants import Constants
from gradscope.tracing.lookup.functions.bounded_functions import BoundedFunction, MaskUse
from gradscope.tracing.lookup.functions.model_values import ModelValues
from gradscope.tracing.tracer import Trace

_APPLIES: Final = frozenset({"select_n", "mul"})
_COMPARISONS: Final = frozenset({"lt", "le", "gt", "ge"})
#: What may be between a mask as it is drawn and what it multiplies: another type, a shape, and the scale of what stays.
_SCALED: Final = COPIES | {"mul", "div"}
#: Return zero where they receive it, so that a name behind them is that of what was dropped.
_KEEP_ZEROS: Final = _SCALED | {"max"} | CUSTOM_RULES


class _Drawn(NamedTuple):
    """A `_Drawn` is a mask as it is drawn, and its element for which an element of the value is dropped."""

    value: ValueKey
    drops: bool


def random_masks(trace: Trace) -> Iterator[BoundedFunction]:
    """Yields the random masks of values inside the model, in program order.

    Args:
        trace: The trace.
    """
    search = _Search(trace)
    uses: dict[ValueKey, MaskUse] = {}
    for frame in trace.root.walk():
        for number in () if frame.opaque or frame.bypassed else range(len(frame.jaxpr.eqns)):
            if (found := search.mask(frame, number)) is not None:
                value, use = found
                zeros = (*uses[value].zeros, *use.zeros) if value in uses else use.zeros
                uses[value] = replace(uses.get(value, use), zeros=zeros)
    for value, use in uses.items():
        yield BoundedFunction(
            function="mask", site=trace.site_at(value), entries=1, layer=None, inputs=tuple, mask=use
        )  # fmt: skip


class _Search:
    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._frames = {frame.key: frame for frame in trace.root.walk()}
        self._constants = Constants(trace)
        self._flow = ForwardFlow()
        self._values = ModelValues(trace, self._flow)
        self._named = {site.value: site for site in trace.sites if any(not name.operation for name in site.names)}

    def mask(self, frame: Frame, number: int) -> tuple[ValueKey, MaskUse] | None:
        """Returns the mask by which an equation drops elements of a value that the model passes on; None for others."""
        equation = frame.jaxpr.eqns[number]
        if equation.primitive.name not in _APPLIES:
            return None
        result = FrameVariable(frame, equation.outvars[0])
        found = self._applied(frame, equation) if result in self._values.drawn and self._passes(result) else None
        if found is None:
            return None
        drawn, value = found
        if is_literal(value.atom) or not self._passes(value):
            return None  # it chooses among parameters, as a learned token does that stands for what is hidden
        source = self._trace.site_at(made_at(frame, number, 0)).source
        return drawn.value, MaskUse(drawn.drops, source, tuple(self._zeros(result)))

    def _passes(self, variable: FrameVariable) -> bool:
        return self._values.are_learned(variable) and self._values.lead_to_weights(variable)

    def _applied(self, frame: Frame, equation: Equation) -> tuple[_Drawn, FrameVariable] | None:
        """Returns the mask that an equation applies, and the value that it applies it to."""
        if equation.primitive.name == "select_n":
            which, *cases = equation.invars
            zeros = [self._constants.number(frame, case) == 0 for case in cases]
            if zeros not in ([True, False], [False, True]):
                return None
            drawn = self._back(frame, which, drops=zeros[1])
            return None if drawn is None else (drawn, FrameVariable(frame, cases[zeros.index(False)]))
        for mask, value in (equation.invars, equation.invars[::-1]):
            if self._is_drawn(frame, mask) and (drawn := self._back(frame, mask)) is not None:
                return drawn, FrameVariable(frame, value)
        return None

    def _back(self, frame: Frame, atom: Atom, *, drops: bool = False) -> _Drawn | None:
        """Returns the comparison with random numbers that an atom is made of, by a scale alone; None for another."""
        value = resolve(frame, atom)
        if value is None or value.equation == OPERAND:
            return None
        maker = self._frames[value.frame]
        equation = maker.jaxpr.eqns[value.equation]
        name = equation.primitive.name
        if name in _COMPARISONS:
            random = [self._is_drawn(maker, each) for each in equation.invars]
            is_mask = sum(random) == 1 and self._is_random(maker, equation.invars[random.index(True)])
            return _Drawn(value, drops) if is_mask and not maker.opaque else None
        if name == "not":
            return self._back(maker, equation.invars[0], drops=not drops)
        varying = [each for each in equation.invars if self._constants.number(maker, each) is None]
        return self._back(maker, varying[0], drops=drops) if name in _SCALED and len(varying) == 1 else None

    def _is_drawn(self, frame: Frame, atom: Atom) -> bool:
        return not is_literal(atom) and FrameVariable(frame, atom) in self._values.drawn

    def _is_random(self, frame: Frame, atom: Atom) -> bool:
        """Returns whether an atom is random numbers, scaled by what is neither a parameter nor data."""
        value = resolve(frame, atom)
        if value is None or value.equation == OPERAND:
            return False
        maker = self._frames[value.frame]
        equation = maker.jaxpr.eqns[value.equation]
        if equation.primitive.name in RANDOM:
            return True
        variables = [FrameVariable(maker, each) for each in equation.invars if not is_literal(each)]
        drawn = [each for each in variables if each in self._values.drawn]
        others = [each for each in variables if each not in self._values.drawn]
        fixed = not any(each in self._values.of_params or each in self._values.of_batch for each in others)
        return len(drawn) == 1 and fixed and self._is_random(*drawn[0])

    def _zeros(self, result: FrameVariable) -> Iterator[Site]:
        """Yields the values with a name that are zero wherever a value is."""
        for frame, atom in self._flow.closure([result], self._keeps_zeros):
            value = resolve(frame, atom)
            if value is not None and value in self._named:
                yield self._named[value]

    def _keeps_zeros(self, step: Step) -> bool:
        if step.way != "compute":
            return step.way in ("enter", "leave")
        equation = step.frame.jaxpr.eqns[step.number]
        return equation.primitive.name in _KEEP_ZEROS
