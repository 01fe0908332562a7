"""Steps are what a traced loss does one after the other, and between which it may be interrupted.

An equation is a step. A call that runs in place, as of a function under `jit`, is the steps of its own equations and
one that *leaves* it. A scan whose iterations do not fit at once is a step for some iterations after the other, which
pass the carries on, and one that *joins* what these made. All other loops, branches and checkpointed functions are one
step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from gradscope.instrument.plan import Plan
from gradscope.tracing.jaxpr.frames import OPERAND, Frame, FrameKey
from gradscope.tracing.jaxpr.jaxcompat import Atom, Equation, is_dropped, is_literal
from gradscope.tracing.jaxpr.transfers import loop_operands
from gradscope.tracing.tracer import Trace

#: What a step does: it runs one equation, leaves the frame of a call, runs some iterations of a loop, or joins all.
StepKind: TypeAlias = Literal["equation", "leave", "iterations", "join"]


class Value(NamedTuple):
    """A `Value` is a variable in its frame, or what a loop has made of it after some of its parts.

    Attributes:
        frame: The frame.
        atom: The variable.
        shape: Its shape and dtype.
        parts: Of a loop that is run in parts, how many of them have made it; 0 for the variable itself.
    """

    frame: Frame
    atom: Atom
    shape: jax.ShapeDtypeStruct
    parts: int = 0

    @classmethod
    def of(cls, frame: Frame, atom: Atom) -> Value:
        """Returns a variable of a frame."""
        return cls(frame, atom, _shape(atom))

    @property
    def size_bytes(self) -> int:
        """Its bytes."""
        return bytes_of(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Step:
    """A `Step` is run or not run as one.

    Attributes:
        kind: What it does.
        frame: The frame that its equation is in.
        equation: The number of the equation, in the frame.
        reads: The values that it reads, the function's arguments among them; constants are there anyway.
        writes: The values that it makes.
        size_bytes: An estimate of the bytes of what is computed in it, with the gradients.
        iterations: The iterations of the loop that it runs; None where it runs all that there are.
    """

    kind: StepKind
    frame: Frame
    equation: int
    reads: tuple[Value, ...]
    writes: tuple[Value, ...]
    size_bytes: int = 0
    iterations: range | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """`Steps` are all steps of a traced loss.

    Attributes:
        all: The steps, in the order in which they are run.
    """

    all: Sequence[Step]
    _root: Frame
    _making: Mapping[tuple[FrameKey, int], int]
    _running: Mapping[tuple[FrameKey, int], range]

    def observing(self, frame: FrameKey, equation: int, position: int) -> range:
        """Returns the numbers of the steps in which a value can be observed: several for one inside a loop.

        Args:
            frame: The key of its frame.
            equation: The number of the equation that makes or uses it; the number behind the last equation stands for
                what the frame returns.
            position: Its position there.
        """
        for depth, (number, _) in enumerate(frame):
            if (found := self._running.get((frame[:depth], number))) is not None:
                return found
        if not frame and equation == len(self._root.jaxpr.eqns):
            equation = self._root.definitions[self._root.jaxpr.outvars[position]][0]
        at = self._making[frame, equation]
        return range(at, at + 1)


def steps_of(trace: Trace, plan: Plan, budget: int) -> Steps:
    """Returns the steps of a traced loss.

    Args:
        trace: The trace.
        plan: What is observed.
        budget: Bytes of what is computed, with the gradients, above which a scan is run in parts.
    """
    division = _Division(plan, budget)
    division.add_frame(trace.root)
    return Steps(all=division.steps, _root=trace.root, _making=division.making, _running=division.running)


@dataclass(frozen=True, slots=True)
class _Division:
    """A `_Division` divides a trace into steps; its first fields are arguments of `steps_of`.

    Attributes:
        steps: The steps so far.
        making: By frame and equation, the number of the step that makes what the equation returns.
        running: By frame and equation, the numbers of the steps that run the frames inside the equation.
    """

    plan: Plan
    budget: int
    steps: list[Step] = field(default_factory=list[Step])
    making: dict[tuple[FrameKey, int], int] = field(default_factory=dict[Any, Any])
    running: dict[tuple[FrameKey, int], range] = field(default_factory=dict[Any, Any])

    def add_frame(self, frame: Frame) -> None:
        """Adds the steps of a frame that is run in place."""
        for number, equation in enumerate(frame.jaxpr.eqns):
            children = frame.children.get(number, ())
            if _is_plain_call(equation, children):
                self._add_call(frame, number, children[0])
            elif children and (most := self._iterations(frame, number, children[0])):
                self._add_loop(frame, number, equation, most)
            else:
                self.running[frame.key, number] = range(len(self.steps), len(self.steps) + 1)
                size = 2 * _computed_bytes(frame, number)
                self._add_outputs(frame, number, "equation", _values(frame, equation.invars), size)

    def _add_outputs(self, frame: Frame, number: int, kind: StepKind, reads: tuple[Value, ...], size: int = 0) -> None:
        """Adds the step that makes what an equation returns."""
        self.making[frame.key, number] = len(self.steps)
        writes = _values(frame, frame.jaxpr.eqns[number].outvars)
        self.steps.append(Step(kind=kind, frame=frame, equation=number, reads=reads, writes=writes, size_bytes=size))

    def _add_call(self, frame: Frame, number: int, child: Frame) -> None:
        self.add_frame(child)
        self.making[child.key, len(child.jaxpr.eqns)] = len(self.steps)
        self._add_outputs(frame, number, "leave", _values(child, child.jaxpr.outvars))

    def _iterations(self, frame: Frame, number: int, body: Frame) -> int:
        """Returns how many iterations of a scan are run at a time; 0 for all of them, and for what is no scan."""
        loop = body.transfer.loop
        if loop is None or loop.length is None or loop.parallel:
            return 0
        most, length = max(1, self.budget // max(1, 2 * _bytes_inside(body))), loop.length
        if length <= most or self.plan.uses(frame.key, number):  # of which the loop is differentiated as a whole
            return 0
        # Of the least number of parts, parts of one length, which share their programs.
        return math.ceil(length / math.ceil(length / most))

    def _add_loop(self, frame: Frame, number: int, equation: Equation, most: int) -> None:
        body, operands, length = (
            frame.children[number][0],
            loop_operands(equation, equation.invars),
            equation.params["length"],
        )
        spans = [range(start, min(start + most, length)) for start in range(0, length, most)]
        first = len(operands.constants)
        received = body.jaxpr.invars[first : first + len(operands.carries)]
        returned = [atom for atom in equation.outvars[len(received) :] if not is_dropped(atom)]
        carries, stacked = _values(frame, operands.carries), tuple[Value, ...]()
        outside = _values(frame, [*operands.constants, *operands.sequences])
        self.running[frame.key, number] = range(len(self.steps), len(self.steps) + len(spans))
        for parts, span in enumerate(reversed(spans) if equation.params["reverse"] else spans, 1):
            reads = (*carries, *outside)
            carries = tuple(Value(body, atom, _shape(atom), parts) for atom in received)
            slices = tuple(Value(frame, atom, _shape(atom, len(span)), parts) for atom in returned)
            stacked += slices
            self.steps.append(
                Step(
                    kind="iterations", frame=frame, equation=number, reads=reads, writes=(*carries, *slices),
                    size_bytes=2 * len(span) * _bytes_inside(body), iterations=span,
                )
            )  # fmt: skip
        self._add_outputs(frame, number, "join", (*carries, *stacked))


def bytes_of(aval: Any) -> int:
    """Returns the bytes of a value; 0 for a value without a size in memory, such as a typed key."""
    extended = jnp.issubdtype(aval.dtype, jax.dtypes.extended)
    return 0 if extended else math.prod(aval.shape) * aval.dtype.itemsize


def _is_plain_call(equation: Equation, children: Sequence[Frame]) -> bool:
    """Returns whether an equation is a call that requests no shardings, and computes nothing itself."""
    if not children or not children[0].transfer.in_place or children[0].transfer.recomputed:
        return False
    requested = (*equation.params.get("in_shardings", ()), *equation.params.get("out_shardings", ()))
    return not any(isinstance(sharding, jax.sharding.Sharding) for sharding in requested)


def _values(frame: Frame, atoms: Iterable[Atom]) -> tuple[Value, ...]:
    """Returns the variables among some atoms of a frame that are no constants, each once, as they are made."""
    outer = [_outer(frame, atom) for atom in atoms]
    return tuple(dict.fromkeys(value for value in outer if value is not None))


def _outer(frame: Frame, atom: Atom) -> Value | None:
    """Returns an atom of a frame that is run in place, as the outermost frame has it; None for a constant."""
    if is_literal(atom) or atom not in frame.definitions:
        return None
    equation, position = frame.definitions[atom]
    if equation == OPERAND and frame.parent is not None and frame.equation is not None:
        return _outer(frame.parent, frame.equation.invars[position])
    return Value.of(frame, atom)


def _shape(atom: Atom, slices: int | None = None) -> jax.ShapeDtypeStruct:
    """Returns the shape and dtype of a variable; of one that a loop stacks, those of some slices."""
    shape = atom.aval.shape if slices is None else (slices, *atom.aval.shape[1:])
    return jax.ShapeDtypeStruct(shape, atom.aval.dtype)


def _bytes_inside(frame: Frame) -> int:
    """Returns the bytes of all values that a frame computes, in one iteration where it is a loop's."""
    return sum(_computed_bytes(frame, number) for number in range(len(frame.jaxpr.eqns)))


def _computed_bytes(frame: Frame, number: int) -> int:
    """Returns the bytes of all values that an equation of a frame computes, with those of the frames that it runs."""
    returned = sum(bytes_of(variable.aval) for variable in frame.jaxpr.eqns[number].outvars)
    inside = [
        _bytes_inside(child) * (1 if child.transfer.loop is None else child.transfer.loop.length or 1)
        for child in frame.children.get(number, ())
        if not child.transfer.opaque
    ]
    return max([returned, *inside])  # what it returns is made inside
