"""Bounded functions whose results no layer returns are found inside a model: softmax, sigmoid, tanh and erf.

They are found by what they compute, not by a name: a softmax is a division of exponentials by their sum, alone or
inside a function with a derivative rule of its own. Only those count that pass a signal on. What they receive is made
of the batch and of parameters, and weights that a product of matrices reads follow. So a loss and a model's answer do
not count, nor does a limit on a parameter alone.

Nor does a function whose result multiplies, element by element, what it is computed from. It is a part of an activation
function, the tanh in GELU or the sigmoid in SiLU, and the product has a gradient where the function has none.

A function of a sum with noise counts where a layer returns its result, too, and so does a softmax or a sigmoid whose
result is the logits of another one, wherever it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Final, Literal

from gradscope.dump.manifest.operation_facts.saturation import BoundedName
from gradscope.tracing.dataflow.forward import ForwardFlow, FrameVariable
from gradscope.tracing.dataflow.reachability import is_inexact
from gradscope.tracing.jaxpr.frames import OPERAND, Frame, FrameKey, ValueKey, made_at, resolve, variable_of
from gradscope.tracing.jaxpr.jaxcompat import CUSTOM_RULES, Atom, Equation, is_literal
from gradscope.tracing.layers.layers import LayerCall
from gradscope.tracing.layers.sites import Site
from gradscope.tracing.lookup.functions.model_values import ModelValues
from gradscope.tracing.lookup.functions.softmax_neighbours import SAME_VALUE, NoisySum, SoftmaxNeighbours
from gradscope.tracing.tracer import Trace

_ELEMENTWISE: Final[Mapping[str, BoundedName]] = {"logistic": "sigmoid", "tanh": "tanh", "erf": "erf"}
#: What may be between exponentials and their sum, or between the sum and the division: masks, and a small number.
_GUARDS: Final = SAME_VALUE | {"select_n", "max", "add", "mul"}
#: Primitives that compute each element from those at its index.
_PER_ELEMENT: Final = _GUARDS | {"sub", "neg", "div", "pow", "integer_pow", "square", "exp", "log1p", "abs", "min",
                                 "sqrt", "log", "tanh", "logistic"}  # fmt: skip
#: The most values that are looked at around one function: a long chain without names is not followed to its start.
_NEAR: Final = 100
_LINEAR: Final = SAME_VALUE | {"mul", "add", "sub", "neg", "div"}


@dataclass(frozen=True, slots=True)
class MaskUse:
    """A `MaskUse` is what a random mask is applied to.

    Attributes:
        drops: The element of the mask for which an element of the value becomes zero.
        source: `file:line` in the user's code; None where unknown.
        zeros: The values with a name that are zero where the mask makes the value so.
    """

    drops: bool
    source: str | None
    zeros: tuple[Site, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundedFunction:
    """A `BoundedFunction` is one call of such a function.

    Attributes:
        function: Which; a clip is found by `clips`, attention by `softmax_products`, a mask by `random_masks`.
        site: Its result.
        entries: The number of shares that sum to 1; 1 for a function of single elements.
        layer: The innermost layer that it is in; None outside all layers.
        inputs: Returns the nearest values with a name that it is computed from, in program order.
        named: The same result under its names; None where no layer returns it.
        noise: The sum with noise that it receives; None where there is none.
        again: Whether its shares are the logits of another softmax, or its result that of another sigmoid.
        limits: The limits of a clip; None for every other function.
        positions: The axes of queries and keys of attention; None for every other function.
        mask: What a random mask, which `site` is, is applied to; None for every other function.
    """

    function: BoundedName | Literal["clip", "attention", "mask"]
    site: Site
    entries: int
    layer: LayerCall | None
    inputs: Callable[[], Sequence[Site]]
    named: Site | None = None
    noise: NoisySum | None = None
    again: bool = False
    limits: tuple[float, float] | None = None
    positions: tuple[int, int] | None = None
    mask: MaskUse | None = None


def bounded_functions(trace: Trace) -> list[BoundedFunction]:
    """Returns the bounded functions of a trace that count."""
    return list(_Finding(trace).found())


class _Finding:
    """A `_Finding` finds the bounded functions of one trace."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._frames = {frame.key: frame for frame in trace.root.walk()}
        self._named = {site.value: site for site in trace.sites if any(not name.operation for name in site.names)}
        self._flow = ForwardFlow()
        self._values = ModelValues(trace, self._flow)

    def found(self) -> Iterator[BoundedFunction]:
        """Yields the functions in program order."""
        for frame in self._frames.values():
            if frame.opaque or frame.bypassed:
                continue
            for number, equation in enumerate(frame.jaxpr.eqns):
                what = self._function(frame, number, equation)
                if what is not None and (found := self._passing(frame, number, *what)) is not None:
                    yield found

    def _function(self, frame: Frame, number: int, equation: Equation) -> tuple[BoundedName, int] | None:
        """Returns the function that an equation computes, and the number of entries that sum to 1; None for others."""
        if len(equation.outvars) != 1 or not is_inexact(equation.outvars[0]):
            return None
        if (known := _ELEMENTWISE.get(equation.primitive.name)) is not None:
            return known, 1
        if equation.primitive.name == "div":
            return self._softmax(frame, equation)
        if equation.primitive.name in CUSTOM_RULES:
            inside = frame.children[number][0]
            made = resolve(inside, inside.jaxpr.outvars[0])
            if made is not None and made.equation != OPERAND and len(made.frame) > len(frame.key):
                body = self._frames[made.frame]
                return self._function(body, made.equation, body.jaxpr.eqns[made.equation])
        return None

    def _softmax(self, frame: Frame, division: Equation) -> tuple[BoundedName, int] | None:
        above, below = (self._back(frame, atom, {"exp", "exp2"}) for atom in division.invars)
        total = self._back(frame, division.invars[1], {"reduce_sum"})
        if above is None or total is None or below is not None:
            return None
        around = self._frames[total.frame]
        summed = around.jaxpr.eqns[total.equation]
        if not self._is_same(above, around, summed.invars[0]):
            return None
        entries = math.prod(summed.invars[0].aval.shape[axis] for axis in summed.params["axes"])
        return ("softmax", entries) if entries > 2 else None

    def _back(self, frame: Frame, atom: Atom, primitives: Collection[str]) -> ValueKey | None:
        """Returns the nearest value, behind masks and guards, that one of some primitives makes; None where none is."""
        waiting = [FrameVariable(frame, atom)]
        while waiting:
            value = _value(waiting.pop())
            if value is None or value.equation == OPERAND:
                continue
            maker = self._frames[value.frame]
            equation = maker.jaxpr.eqns[value.equation]
            if equation.primitive.name in primitives:
                return value
            if equation.primitive.name in _GUARDS:
                waiting += [FrameVariable(maker, each) for each in equation.invars if is_inexact(each)]
        return None

    def _is_same(self, numerator: ValueKey, frame: Frame, atom: Atom) -> bool:
        """Returns whether exponentials are those that are summed: the same values, or made again of the same."""
        summed = self._back(frame, atom, {"exp", "exp2"})
        return summed is not None and (summed == numerator or self._text(summed) == self._text(numerator))

    def _text(self, value: ValueKey, deep: int = 4) -> object:
        """Returns what a value is computed by, some operations deep: equal for equal computations."""
        frame = self._frames[value.frame]
        if value.equation == OPERAND or not deep:
            return value
        equation = frame.jaxpr.eqns[value.equation]
        read = [atom.val if is_literal(atom) else resolve(frame, atom) for atom in equation.invars]
        return equation.primitive.name, *(
            self._text(each, deep - 1) if isinstance(each, ValueKey) else str(each) for each in read
        )

    def _passing(self, frame: Frame, number: int, function: BoundedName, entries: int) -> BoundedFunction | None:
        """Returns the function of an equation if it counts."""
        value, made = made_at(frame, number, 0), FrameVariable(frame, frame.jaxpr.eqns[number].outvars[0])
        if not self._values.are_learned(made):
            return None
        again = (function == "softmax" and self._neighbours.is_normalised_again(*made, entries)) or (
            function == "sigmoid" and self._neighbours.is_squashed_again(*made)
        )
        noise = self._neighbours.noise(value, entries)
        if value in self._named:
            counts = noise is not None
        else:
            counts = self._values.lead_to_weights(made) and (
                function == "softmax" or not self._multiplies_itself(frame, number)
            )
        if not counts and not again:
            return None
        return BoundedFunction(
            function=function,
            site=self._trace.site_at(value),
            entries=entries,
            layer=self._layer(frame, number),
            inputs=partial(self._inputs, frame, number),
            named=self._named.get(value),
            noise=noise,
            again=again,
        )

    @cached_property
    def _neighbours(self) -> SoftmaxNeighbours:
        return SoftmaxNeighbours(self._trace, self._frames, self._flow, self._values.of_params, self._values.of_batch)

    def _multiplies_itself(self, frame: Frame, number: int) -> bool:
        """Returns whether a function's result multiplies what it is computed from, element by element."""
        operand = _value(FrameVariable(frame, frame.jaxpr.eqns[number].invars[0]))
        own = set() if operand is None else set(filter(self._varies, self._closure(operand, _PER_ELEMENT)))
        waiting = [FrameVariable(frame, frame.jaxpr.eqns[number].outvars[0])]
        seen = set(waiting)
        while waiting:
            for step in self._flow.steps(waiting.pop()):
                equation = step.frame.jaxpr.eqns[step.number]
                if step.to in seen or step.way not in ("compute", "enter", "leave"):
                    continue
                if step.way == "compute":
                    read = (_value(FrameVariable(step.frame, atom)) for atom in equation.invars)
                    varying = {each for each in read if each is not None and self._varies(each)}
                    if len(varying) > 1 or equation.primitive.name not in _LINEAR:
                        factors = {each for value in varying for each in self._closure(value, _LINEAR)}
                        if equation.primitive.name in ("mul", "div") and own & factors:
                            return True
                        continue
                seen.add(step.to)
                waiting.append(step.to)
        return False

    def _closure(self, value: ValueKey, through: Collection[str]) -> set[ValueKey]:
        """Returns a value and those that it is made of by some primitives, without those of their results."""
        found, waiting = {value}, [value]
        while waiting and len(found) < _NEAR:
            key = waiting.pop(0)
            frame = self._frames[key.frame]
            if key.equation == OPERAND:
                continue
            equation = frame.jaxpr.eqns[key.equation]
            if equation.primitive.name in through or equation.primitive.name in CUSTOM_RULES:
                read = (_value(FrameVariable(frame, atom)) for atom in equation.invars)
                fresh = [each for each in read if each is not None and each not in found]
                found.update(fresh)
                waiting += fresh
        return found

    def _varies(self, value: ValueKey) -> bool:
        """Returns whether a value differs from example to example."""
        frame = self._frames[value.frame]
        return FrameVariable(frame, variable_of(frame, value)) in self._values.of_batch

    def _layer(self, frame: Frame, number: int) -> LayerCall | None:
        """Returns the innermost layer around an equation."""
        key = frame.key
        while (layer := self._layers.get((key, number))) is None and key:
            *around, (number, _) = key
            key = tuple(around)
        return layer

    @cached_property
    def _layers(self) -> Mapping[tuple[FrameKey, int], LayerCall]:
        # Composites come before their parts.
        return {
            (layer.frame.key, number): layer
            for layer in self._trace.layers if not layer.operation for number in layer.equations
        }  # fmt: skip

    def _inputs(self, frame: Frame, number: int) -> Sequence[Site]:
        """Returns the nearest values with a name that an equation's operands are made of."""
        waiting: list[tuple[Frame, Sequence[Atom]]] = [(frame, frame.jaxpr.eqns[number].invars)]
        seen: set[ValueKey] = set()
        found: list[Site] = []
        while waiting and len(seen) < _NEAR:
            around, atoms = waiting.pop(0)
            fresh = dict.fromkeys(value for atom in atoms if (value := resolve(around, atom)) is not None)
            for value in fresh.keys() - seen:
                seen.add(value)
                if value in self._named:
                    found.append(self._named[value])
                elif value.equation != OPERAND:
                    maker = self._frames[value.frame]
                    waiting.append((maker, maker.jaxpr.eqns[value.equation].invars))
        return sorted(found, key=lambda site: site.order)


def _value(variable: FrameVariable) -> ValueKey | None:
    return resolve(*variable)
