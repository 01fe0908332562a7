"""A softmax or a sigmoid has neighbours: noise that is added to what it receives, and another one.

*Noise* is a term of the sum that a function receives in which no parameter is: random numbers that the program draws,
or an array of the batch. A function that chooses by noise, as the Gumbel softmax does, is at its limits on purpose. How
much of the sum's spread is the noise's is measured: a mask in the batch spreads nothing over what it leaves.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from gradscope.dump.manifest.operation_facts.saturation import BoundedName
from gradscope.primitive_groups import ADDITIONS, COPIES, LOGARITHMS, RANDOM
from gradscope.tracing.dataflow.forward import ForwardFlow, FrameVariable, Step
from gradscope.tracing.dataflow.reachability import is_inexact
from gradscope.tracing.jaxpr.frames import OPERAND, Frame, FrameKey, ValueKey, resolve, variable_of
from gradscope.tracing.jaxpr.jaxcompat import CUSTOM_RULES, Atom, Equation, is_literal
from gradscope.tracing.layers.sites import Site
from gradscope.tracing.tracer import Trace

#: Primitives that return their first operand's value, in another shape or type.
SAME_VALUE: Final = COPIES | {"stop_gradient"}
#: What may be between a softmax and the sum that it receives: its own operations, scales and masks.
_SCALED: Final = SAME_VALUE | {"select_n", "max", "add", "sub", "neg", "div", "mul", "exp", "exp2"}
#: What may be between the logits of a softmax and their exponentials, without a change but of an offset or a mask.
_OFFSET: Final = COPIES | {"sub", "add", "select_n"}
#: What may be between the sum of exponentials and the logarithm or the division.
_SUMMED: Final = SAME_VALUE | {"abs", "max", "add"}
#: What reads logits for the sum of their exponentials: of them less the largest, where that is finite.
_FOR_THE_SUM: Final = frozenset({"exp", "exp2", "reduce_max", "max", "argmax", "sub"})
#: What may be between shares and their logarithm: a guard, and the choice of the label's.
_PICKED: Final = _SUMMED | {"min", "clamp", "gather", "select_n"}
#: What may be between a sigmoid's result and the exponential in log(1 + exp(-|x|)).
_SIGNED: Final = COPIES | {"neg", "abs", "add", "sub"}
#: The most values that are looked at before one function.
_NEAR: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisySum:
    """A `NoisySum` is the sum of what weights make and of noise.

    Attributes:
        site: The sum.
        noise: The position of the operand that is noise; the other is the other one.
        axis: The axis of the shares that sum to 1; None where all elements are alike.
    """

    site: Site
    noise: int
    axis: int | None


class SoftmaxNeighbours:
    """A `SoftmaxNeighbours` finds what is before and behind the softmaxes of a trace.

    Args:
        trace: The trace.
        frames: Its frames.
        flow: Its steps.
        of_params: The values made of parameters.
        of_batch: The values made of the batch.
    """

    def __init__(
        self,
        trace: Trace,
        frames: Mapping[FrameKey, Frame],
        flow: ForwardFlow,
        of_params: Collection[FrameVariable],
        of_batch: Collection[FrameVariable],
    ) -> None:
        self._trace, self._frames, self._flow = trace, frames, flow
        self._of_params, self._of_batch = of_params, of_batch
        self._drawn = flow.closure(
            FrameVariable(frame, out) for frame in frames.values() for out in _random_numbers(frame)
        )

    def noise(self, value: ValueKey, entries: int) -> NoisySum | None:
        """Returns the sum with noise that a function receives; None where there is none.

        Args:
            value: The function's result.
            entries: The number of shares that sum to 1; 1 for a function of single elements.
        """
        seen, waiting = {value}, [value]
        while waiting and len(seen) < _NEAR:
            key = waiting.pop(0)
            if key.equation == OPERAND:
                continue
            frame = self._frames[key.frame]
            equation = frame.jaxpr.eqns[key.equation]
            if equation.primitive.name not in _SCALED and equation.primitive.name not in CUSTOM_RULES:
                if key != value:
                    continue
            elif (noise := self._noise(frame, key, entries)) is not None and not frame.opaque:
                return NoisySum(site=self._trace.site_at(key), noise=noise, axis=_axis(frame, key, entries))
            read = (resolve(frame, atom) for atom in equation.invars if is_inexact(atom))
            fresh = [each for each in dict.fromkeys(read) if each is not None and each not in seen]
            seen.update(fresh)
            waiting += fresh
        return None

    def _noise(self, frame: Frame, key: ValueKey, entries: int) -> int | None:
        """Returns the operand of a sum that no parameter is in and that varies, where the other has one.

        An array of the batch to which a parameter itself is added, before a function of single elements, is a signal.
        """
        equation = frame.jaxpr.eqns[key.equation]
        if equation.primitive.name not in ADDITIONS or any(map(is_literal, equation.invars)):
            return None
        variables = [FrameVariable(frame, atom) for atom in equation.invars]
        of_params = [variable in self._of_params for variable in variables]
        if sum(of_params) != 1:
            return None
        noise = of_params.index(False)
        passed_in = variables[noise] in self._of_batch and (entries > 1 or variables[1 - noise] in self._of_batch)
        return noise if passed_in or variables[noise] in self._drawn else None

    def is_normalised_again(self, frame: Frame, shares: Atom, entries: int) -> bool:
        """Returns whether a softmax's shares are the logits of another one, or of its logarithm.

        Args:
            frame: The frame of the shares.
            shares: The shares.
            entries: How many of them sum to 1.
        """
        exponentials = self._exponentials(FrameVariable(frame, shares))
        sums = [
            step.to
            for variable in exponentials for step in self._flow.steps(variable)
            if step.way == "compute"
            and (equation := step.frame.jaxpr.eqns[step.number]).primitive.name == "reduce_sum"
            and math.prod(equation.invars[0].aval.shape[axis] for axis in equation.params["axes"]) == entries
        ]  # fmt: skip
        return any(True for _ in self._made(self._behind(sums, _SUMMED), LOGARITHMS | {"div"}))

    def function_of_logits(self, value: FrameVariable) -> BoundedName | None:
        """Returns the function whose logarithm a loss takes of a value as its logits; None where it is none.

        Args:
            value: The value.
        """
        exponentials = self._exponentials(value)
        sums = self._behind(self._made(exponentials, {"reduce_sum"}), _SUMMED)
        shares = [
            step.to
            for each in sums for step in self._flow.steps(each)
            if step.way == "compute"
            and (equation := step.frame.jaxpr.eqns[step.number]).primitive.name == "div"
            and equation.invars[1] is each.atom  # a sum that is divided is a mean
        ]  # fmt: skip
        if self._are_taken_of(value, self._made(sums, LOGARITHMS)) or self._made(
            self._behind(shares, _PICKED), LOGARITHMS
        ):
            return "softmax"
        same = self._moved([value])
        squashed = self._behind(self._made(same, {"logistic"}), _PICKED)
        return "sigmoid" if self._made(squashed, {"log"}) or self._is_logit(value, same) else None

    def _are_taken_of(self, logits: FrameVariable, logs: Collection[FrameVariable]) -> bool:
        """Returns whether logarithms of sums are subtracted from logits, or from what is picked of them.

        A smooth maximum of values, or a bound of their mean exponential, reads them for the sum alone.
        """
        shifted, sums = self._behind([logits], _OFFSET), self._behind(logs, SAME_VALUE)
        steps = (step for each in shifted for step in self._flow.steps(each) if logs and step.way == "compute")
        for step in steps:
            equation = step.frame.jaxpr.eqns[step.number]
            if equation.primitive.name == "sub" and FrameVariable(step.frame, equation.invars[1]) in sums:
                return True
            if step.to not in shifted and equation.primitive.name not in _FOR_THE_SUM:
                return True
        return False

    def _exponentials(self, logits: FrameVariable) -> Collection[FrameVariable]:
        """Returns the exponentials of a value but for an offset or a mask."""
        return self._behind(self._made(self._behind([logits], _OFFSET), {"exp", "exp2"}), SAME_VALUE)

    def is_squashed_again(self, frame: Frame, share: Atom) -> bool:
        """Returns whether a sigmoid's result is the logit of another one, or of the logarithms for both classes.

        A `softplus` of it, and of its negative not, may be a scale that is kept above zero.

        Args:
            frame: The frame of the share.
            share: The share.
        """
        same = self._moved([FrameVariable(frame, share)])
        return bool(self._made(same, {"logistic"})) or self._is_logit(FrameVariable(frame, share), same)

    def _is_logit(self, value: FrameVariable, same: Mapping[FrameVariable, None]) -> bool:
        """Returns whether the logarithms of a sigmoid are computed of a value, for both classes or with a label.

        Args:
            value: The value.
            same: It and the same in other shapes.
        """
        negative = self._moved(self._made(same, {"neg"}))
        positive = {**same, **self._moved(self._made(negative, {"neg"}))}
        of_each = [any(True for _ in self._softplus(each)) for each in (positive, negative)]
        return all(of_each) or (
            any(map(self._has_label, self._made(same, {"mul"}))) and (any(of_each) or self._is_written_out(value))
        )

    def _is_written_out(self, value: FrameVariable) -> bool:
        """Returns whether log(1 + exp(-|x|)) of a value is computed."""
        signed = self._flow.closure([value], partial(self._is_of_one, _SIGNED))
        return bool(self._made(self._moved(self._made(signed, {"exp"})), {"log1p"}))

    def _moved(self, values: Iterable[FrameVariable]) -> dict[FrameVariable, None]:
        """Returns some values and the same in other shapes."""
        return self._flow.closure(values, partial(self._is_of_one, COPIES))

    def _is_of_one(self, through: Collection[str], step: Step) -> bool:
        """Returns whether a step changes a value by some primitives, and by constants alone."""
        if step.way != "compute":
            return step.way in ("enter", "leave")
        equation = step.frame.jaxpr.eqns[step.number]
        read = [FrameVariable(step.frame, each) for each in equation.invars if not is_literal(each)]
        varying = [each for each in read if each in self._of_params or each in self._of_batch]
        return equation.primitive.name in through and len(varying) == 1

    def _softplus(self, values: Collection[FrameVariable]) -> Iterator[FrameVariable]:
        """Yields log(1 + exp(x)) of one of some values, which has a derivative rule of its own."""
        for step in (step for variable in values for step in self._flow.steps(variable) if step.way == "compute"):
            name = step.frame.jaxpr.eqns[step.number].primitive.name
            inside = step.frame.children.get(step.number, [])
            made_by = {equation.primitive.name for frame in inside for equation in frame.jaxpr.eqns}
            if name in CUSTOM_RULES and self._is_of_one({name}, step) and made_by.issuperset({"exp", "log1p"}):
                yield step.to

    def _has_label(self, product: FrameVariable) -> bool:
        """Returns whether one factor of a product is made of the batch alone."""
        made = resolve(*product)
        if made is None or made.equation == OPERAND:
            return False
        frame = self._frames[made.frame]
        read = [FrameVariable(frame, each) for each in frame.jaxpr.eqns[made.equation].invars if not is_literal(each)]
        return any(each in self._of_batch and each not in self._of_params for each in read)

    def _behind(self, start: Collection[FrameVariable], through: Collection[str]) -> Collection[FrameVariable]:
        """Returns some values and those that are made of them by some primitives, as the operand that they change."""
        found = dict.fromkeys(start)
        waiting = list(found)
        while waiting:
            variable = waiting.pop()
            for step in self._flow.steps(variable):
                equation = step.frame.jaxpr.eqns[step.number]
                same = step.way in ("enter", "leave") or (
                    step.way == "compute"
                    and equation.primitive.name in through
                    and (equation.primitive.name in SAME_VALUE or self._goes_on(step.frame, equation, variable.atom))
                )
                if same and step.to not in found:
                    found[step.to] = None
                    waiting.append(step.to)
        return found

    def _goes_on(self, frame: Frame, equation: Equation, atom: Atom) -> bool:
        """Returns whether an operand is the one that an equation changes: by an offset, a guard or a mask of data."""
        first, *rest = equation.invars
        if equation.primitive.name == "sub":
            return first is atom  # the largest logit that is subtracted is made of parameters
        values = rest if equation.primitive.name == "select_n" else equation.invars
        others = [each for each in values if each is not atom and not is_literal(each)]
        return any(each is atom for each in values) and not any(
            FrameVariable(frame, each) in self._of_params for each in others
        )

    def _made(self, values: Collection[FrameVariable], primitives: Collection[str]) -> list[FrameVariable]:
        """Returns what some primitives make of some values."""
        steps = (step for variable in values for step in self._flow.steps(variable) if step.way == "compute")
        return [step.to for step in steps if step.frame.jaxpr.eqns[step.number].primitive.name in primitives]


def _random_numbers(frame: Frame) -> Iterator[object]:
    drawing = (equation for equation in frame.jaxpr.eqns if equation.primitive.name in RANDOM)
    return (variable for equation in drawing for variable in equation.outvars)


def _axis(frame: Frame, key: ValueKey, entries: int) -> int | None:
    """Returns the last axis of a sum that is as long as the shares are many; None where no axis is."""
    shape = variable_of(frame, key).aval.shape
    return next((axis for axis in reversed(range(len(shape))) if shape[axis] == entries > 1), None)
