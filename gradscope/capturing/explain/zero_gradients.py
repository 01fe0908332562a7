"""Why a gradient is exactly zero: where on its way back from the loss it was lost.

A gradient is the sum of what flows back from every use of its value. It is zero because a use lets nothing through (a
*cut*), because what arrives at a use is zero already (then the question moves on to there), because the branch that
uses it was not taken, or because what flows back from several uses cancels.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from gradscope.capturing.execution.run import Run
from gradscope.capturing.explain.neighbourhood import MOST_BYTES, Closeup, close_up, differentiably
from gradscope.capturing.explain.zero_uses import Use
from gradscope.dump.manifest.manifest import Cause
from gradscope.tracing.dataflow.forward import ForwardFlow, FrameVariable, Step
from gradscope.tracing.dataflow.gradient_barriers import at_place
from gradscope.tracing.dataflow.reachability import is_inexact
from gradscope.tracing.jaxpr.frames import Frame, ValueKey, variable_of

#: So many causes are told of one gradient.
_MOST_CAUSES: Final = 3
#: So many values are looked at on the way from one gradient.
_MOST_VALUES: Final = 2000
_TOO_LARGE: Final = "not looked into, because its way to the loss does not fit in memory"

_Turn: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Zero:
    """A gradient that is exactly zero.

    Attributes:
        family: Its family.
        name: Its name.
        value: The value that it is the gradient with respect to.
        turn: The turn of the loops around that.
    """

    family: str
    name: str
    value: ValueKey
    turn: _Turn


def causes_of(
    run: Run, zeros: Sequence[Zero], flowing: Collection[ValueKey], most_bytes: int = MOST_BYTES
) -> tuple[Cause, ...]:
    """Why each of some gradients is exactly zero; those of which it cannot be told are left out.

    Args:
        run: The run that found them.
        zeros: The gradients.
        flowing: Values whose gradients are not zero in some turn; what lies behind them need not be looked at.
        most_bytes: How much may be looked at.
    """
    if not zeros:
        return ()
    frames = {frame.key: frame for frame in run.trace.root.walk()}
    around = {zero: frames[zero.value.frame] for zero in zeros}
    starts = {zero: FrameVariable(frame, variable_of(frame, zero.value)) for zero, frame in around.items()}
    unknown = {zero.value for zero in zeros}
    closeup = close_up(run, list(starts.values()), set(flowing) - unknown, most_bytes)
    if closeup is None:
        return tuple(Cause(family=zero.family, name=zero.name, why=_TOO_LARGE) for zero in zeros)
    search = _Search(run, closeup)
    found = ((zero, "; ".join(search.causes(starts[zero], zero.turn))) for zero in zeros)
    return tuple(Cause(family=zero.family, name=zero.name, why=why) for zero, why in found if why)


class _Moment(NamedTuple):
    """A value in one turn of the loops around its frame."""

    place: FrameVariable
    turn: _Turn


class _Cut(NamedTuple):
    """Nothing comes back from a use, although something arrives there."""

    words: str


class _Flow(NamedTuple):
    """Something comes back from a use."""

    where: str


#: What becomes of the gradient at one use of a value: a moment where nothing arrives already.
_Result: TypeAlias = _Cut | _Flow | _Moment


class _Search:
    """Looks for causes.

    Args:
        run: The run.
        closeup: What is known around the gradients.
    """

    def __init__(self, run: Run, closeup: Closeup) -> None:
        self._closeup = closeup
        self._differentiably = partial(differentiably, run.trace.reachability)
        self._flow = ForwardFlow()
        self._layers = {
            (layer.frame, number): layer.path.template
            for layer in sorted(run.trace.layers, key=lambda layer: len(layer.path.components))
            for number in layer.equations
        }

    def causes(self, start: FrameVariable, turn: _Turn) -> list[str]:
        """Why the gradient with respect to a value is zero, the cause nearest to the value first."""
        waiting = [_Moment(start, turn)]
        seen = set(waiting)
        found: dict[str, None] = {}
        while waiting and len(seen) < _MOST_VALUES and len(found) < _MOST_CAUSES:
            told, further = self._look(waiting.pop(0))
            found |= dict.fromkeys(told)
            fresh = [moment for moment in further if moment not in seen]
            seen.update(fresh)
            waiting += fresh
        return list(found)

    def _look(self, moment: _Moment) -> tuple[list[str], list[_Moment]]:
        """What cuts the ways from one value, and the values at which nothing arrives already."""
        cuts: list[str] = []
        further: list[_Moment] = []
        flowing: dict[str, None] = {}
        results = [*self._computed(moment), *self._renamed(moment)]
        if not results:
            here = " in its turn" if moment.turn else ""
            return [f"disconnected: nothing that the loss depends on is made from it{here}"], []
        for result in results:
            match result:
                case _Cut(words=words):
                    cuts.append(words)
                case _Flow(where=where):
                    flowing[where] = None
                case _:
                    further.append(result)
        if flowing:
            return [f"cancellation: what flows back from {' and '.join(flowing)} sums to exactly zero"], []
        return cuts, further

    def _computed(self, moment: _Moment) -> Iterator[_Result]:
        """What becomes of the gradient in each equation that computes with a value."""
        steps = [
            step for step in self._flow.steps(moment.place) if step.way == "compute" and self._differentiably(step)
        ]
        for frame, number in dict.fromkeys((step.frame, step.number) for step in steps):
            use = self._use(frame, number, moment)
            if use is None:
                yield _Cut(f"not followed beyond {at_place(frame, number)}")
            elif not any(np.any(each) for each in use.cotangents):
                outputs = (step.to for step in steps if (step.frame, step.number) == (frame, number))
                yield from (_Moment(place, moment.turn) for place in outputs)
            elif use.gradient().any():
                yield _Flow(at_place(frame, number))
            else:
                yield _Cut(use.words())

    def _use(self, frame: Frame, number: int, moment: _Moment) -> Use | None:
        """An equation's use of a value, with numbers; None where not all of them are known."""
        equation = frame.jaxpr.eqns[number]
        operands = [self._closeup.value(FrameVariable(frame, atom), moment.turn) for atom in equation.invars]
        if any(each is None for each in operands):
            return None
        outputs = [FrameVariable(frame, variable) for variable in equation.outvars if is_inexact(variable)]
        cotangents = [self._closeup.cotangent(place, moment.turn) for place in outputs]
        return Use(
            frame=frame,
            number=number,
            positions=tuple(n for n, atom in enumerate(equation.invars) if atom is moment.place.atom),
            operands=operands,
            cotangents=[
                np.zeros(place.atom.aval.shape, place.atom.aval.dtype) if each is None else each
                for place, each in zip(outputs, cotangents, strict=True)
            ],
            layer=self._layers.get((frame, number)),
        )

    def _renamed(self, moment: _Moment) -> Iterator[_Result]:
        """What becomes of the gradient where another frame knows a value by another name."""
        for step in self._flow.steps(moment.place):
            if step.way == "compute" or not self._differentiably(step):
                continue
            if step.to.frame.transfer.exclusive and not self._closeup.was_executed(step.to.frame, moment.turn):
                yield _Cut(f"branch not taken: {at_place(step.frame, step.number)}")
                continue
            for turn in _turns(step, moment):
                arrived = self._closeup.cotangent(step.to, turn)
                one = arrived[moment.turn[-1]] if step.way == "stack" and arrived is not None else arrived
                if np.any(one):
                    yield _Flow(at_place(step.frame, step.number))
                elif np.any(arrived):
                    yield _Cut(f"masked: turn {moment.turn[-1]} of {at_place(step.frame, step.number)} is not taken")
                else:
                    yield _Moment(step.to, turn)


def _turns(step: Step, moment: _Moment) -> Sequence[_Turn]:
    """The turns in which a step from a value leads to another."""
    turn, there = moment.turn, step.to.frame
    loops_here, loops_there = moment.place.frame.loops, there.loops
    if step.way in ("leave", "stack") and len(loops_there) < len(loops_here):
        *_, last = _in_order(moment.place.frame)
        return [turn[:-1]] if step.way == "stack" or turn[-1] == last else []
    if step.way == "again":
        order = list(_in_order(there))
        at = order.index(turn[-1]) + 1
        return [(*turn[:-1], order[at])] if at < len(order) else []
    if len(loops_there) == len(loops_here):
        return [turn]
    return [(*turn, index) for index in _in_order(there)][: 1 if step.way == "carry" else None]


def _in_order(body: Frame) -> range:
    """The turns of a scan whose body a frame is, in the order in which they run."""
    loop = body.loops[-1]
    turns = range(loop.length or 0)
    return turns[::-1] if loop.reverse else turns
