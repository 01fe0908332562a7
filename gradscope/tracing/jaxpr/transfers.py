"""Transfers state how values pass between an equation and each frame that it runs, for every kind of frame.

A `Transfer` states for each variable that the frame receives which operand of the equation it comes from and how it
*enters*, and for each output of the frame's jaxpr how it *leaves* as the equation's output at the same position:

    ============  =================================  =================  ================================
    kind          how operands enter                 how outputs leave  gradients
    ============  =================================  =================  ================================
    call          same                               same               through
    remat         same                               same               through
    scan          constants same, carries carry,     carry, then stack  through
                  sequences slice
    while         constants same, carries carry      carry              barred
    cond          same, after the predicate          same               through
    shard_map     slice                              stack              through
    linear_solve  constants, right-hand side same    same               around, by a transposed solve
    custom_rule   same                               not known          around
    opaque        not known                          not known          around
    ============  =================================  =================  ================================

Every analysis of dataflow reads this table alone. A new higher-order primitive is a `FrameKind`, one function here and
one interpreter rule (`instrument/rewriting/frame_rules`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from gradscope.tracing.jaxpr.jaxcompat import (
    Equation,
    FrameKind,
    Jaxpr,
    SubJaxpr,
    closed_over,
    loop_arity,
    shard_count,
)

#: How an operand enters: unchanged, as the initial value of a carry, or one slice for each iteration.
Entering: TypeAlias = Literal["same", "carry", "slice"]

#: How an output leaves: unchanged, to the next iteration and out of the last one, or stacked over all iterations.
Leaving: TypeAlias = Literal["same", "carry", "stack"]

#: How reverse mode gets from an equation's outputs to its operands: through the frame's own equations, around them by a
#: derivative rule of the equation, or not at all.
Gradients: TypeAlias = Literal["through", "around", "barred"]


class Entry(NamedTuple):
    """An `Entry` states how one variable of a frame gets its value.

    Attributes:
        operand: The position of the operand that it comes from.
        how: How the operand enters.
    """

    operand: int
    how: Entering


class Repetition(NamedTuple):
    """A `Repetition` states how often an equation runs a frame.

    Attributes:
        length: The number of iterations; None where it is only known once the loop has run.
        reverse: Whether the iterations run from the last to the first.
        parallel: Whether they run at once, on several devices: the shards of a `shard_map`.
    """

    length: int | None
    reverse: bool = False
    parallel: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """A `Transfer` states how values pass between an equation and one frame that it runs.

    Attributes:
        inputs: For each variable that the frame receives, where it comes from; None where not known.
        outputs: For each output of the frame's jaxpr, how it leaves; None where not known.
        predicates: Positions of the operands that only decide which frame runs, or whether it runs again.
        loop: How often it runs; None for once.
        exclusive: Whether it is one of several frames of which only one runs.
        in_place: Whether the equation computes nothing in addition to the frame.
        gradients: How reverse mode passes.
        differentiated: Where gradients do not pass through the frame: the operands, by position, that the outputs are
            smooth in.
        fills_zeros: Whether JAX makes a cotangent of zeros for an output without one if another output has one.
        recomputed: Whether the frame runs again in the backward pass.
        beside: Whether it runs only in addition, to be observed: what the equation returns, its own rule makes.
        opaque: Whether the interpreter never enters the frame.
    """

    inputs: tuple[Entry | None, ...]
    outputs: tuple[Leaving | None, ...]
    predicates: tuple[int, ...] = ()
    loop: Repetition | None = None
    exclusive: bool = False
    in_place: bool = False
    gradients: Gradients = "through"
    differentiated: tuple[int, ...] = ()
    fills_zeros: bool = False
    recomputed: bool = False
    beside: bool = False
    opaque: bool = False
    _entering: dict[int, list[tuple[int, Entering]]] = field(init=False, default_factory=dict[int, Any])
    _next: dict[int, int] = field(init=False, default_factory=dict[int, int])
    _before: dict[int, int] = field(init=False, default_factory=dict[int, int])

    def __post_init__(self) -> None:
        for variable, entry in enumerate(self.inputs):
            if entry is not None:
                self._entering.setdefault(entry.operand, []).append((variable, entry.how))
        # The first carry among the outputs is the first among the variables: so are a scan's and a while's.
        outputs = (at for at, how in enumerate(self.outputs) if how == "carry")
        self._next.update(zip(outputs, filter(self.is_carry, range(len(self.inputs))), strict=True))
        self._before.update({variable: output for output, variable in self._next.items()})

    def is_carry(self, variable: int) -> bool:
        """Returns whether a variable of the frame receives an output of the iteration before."""
        entry = self.inputs[variable]
        return entry is not None and entry.how == "carry"

    def entering(self, operand: int) -> Sequence[tuple[int, Entering]]:
        """Returns the variables of the frame, by position, that get their values from an operand, and how it enters."""
        return self._entering.get(operand, ())

    def next_variable(self, output: int) -> int | None:
        """Returns the variable that receives an output in the next iteration; None for an output that is no carry."""
        return self._next.get(output)

    def output_before(self, variable: int) -> int | None:
        """Returns the output of the iteration before that a variable receives; None for a variable that is no carry."""
        return self._before.get(variable)

    def decides(self, operand: int) -> bool:
        """Returns whether an operand may decide what runs, or how often: a predicate, or an operand of such a loop."""
        return operand in self.predicates or self.unbounded

    @property
    def unbounded(self) -> bool:
        """Whether the frame is the body of a loop whose number of iterations is only known once it has run."""
        return self.loop is not None and self.loop.length is None


def transfer_of(equation: Equation, sub: SubJaxpr) -> Transfer:
    """Returns the transfer between an equation and one of its sub-jaxprs."""
    return TRANSFERS[sub.kind](equation, sub)


def root_transfer(jaxpr: Jaxpr) -> Transfer:
    """Returns the transfer of the root frame, which no equation runs."""
    return Transfer(inputs=(None,) * len(jaxpr.invars), outputs=(None,) * len(jaxpr.outvars))


def _call(equation: Equation, sub: SubJaxpr) -> Transfer:
    return Transfer(inputs=_all(equation, "same"), outputs=_leaving(len(sub.jaxpr.outvars), "same"), in_place=True)


def _remat(equation: Equation, sub: SubJaxpr) -> Transfer:
    return Transfer(
        inputs=_all(equation, "same"),
        outputs=_leaving(len(sub.jaxpr.outvars), "same"),
        in_place=True,
        fills_zeros=True,
        recomputed=True,
    )


def _scan(equation: Equation, sub: SubJaxpr) -> Transfer:
    operands = loop_operands(equation, range(len(equation.invars)))
    constants, carries = _entries(operands.constants, "same"), _entries(operands.carries, "carry")
    return Transfer(
        inputs=(*constants, *carries, *_entries(operands.sequences, "slice")),
        outputs=(*_leaving(len(carries), "carry"), *_leaving(len(sub.jaxpr.outvars) - len(carries), "stack")),
        loop=Repetition(equation.params["length"], reverse=equation.params["reverse"]),
        fills_zeros=True,
    )


def _while(equation: Equation, sub: SubJaxpr) -> Transfer:
    operands = loop_operands(equation, range(len(equation.invars)))
    return Transfer(
        inputs=(*_entries(operands.constants, "same"), *_entries(operands.carries, "carry")),
        outputs=_leaving(len(sub.jaxpr.outvars), "carry"),
        predicates=tuple(operands.condition),
        loop=Repetition(None),
        gradients="barred",
    )


def _cond(equation: Equation, sub: SubJaxpr) -> Transfer:
    return Transfer(
        inputs=_entries(range(1, len(equation.invars)), "same"),
        outputs=_leaving(len(sub.jaxpr.outvars), "same"),
        predicates=(0,),
        exclusive=True,
        fills_zeros=True,
    )


def _shard_map(equation: Equation, sub: SubJaxpr) -> Transfer:
    return Transfer(
        inputs=_all(equation, "slice"),
        outputs=_leaving(len(sub.jaxpr.outvars), "stack"),
        loop=Repetition(shard_count(equation), parallel=True),
        fills_zeros=True,
    )


class LoopOperands(NamedTuple):
    """`LoopOperands` are the operands of a `scan`, which has no condition, or of a `while`, which has no sequences."""

    condition: Sequence[Any]
    constants: Sequence[Any]
    carries: Sequence[Any]
    sequences: Sequence[Any]


def loop_operands(equation: Equation, operands: Sequence[Any]) -> LoopOperands:
    """Returns the operands of a `scan` or `while` equation, or one item for each, grouped by purpose."""
    first, second, third = accumulate(loop_arity(equation))
    return LoopOperands(operands[:first], operands[first:second], operands[second:third], operands[third:])


class SolveOperands(NamedTuple):
    """`SolveOperands` are a `custom_linear_solve`'s operands: each function's constants, then the right-hand side."""

    matvec: Sequence[Any]
    vecmat: Sequence[Any]
    solve: Sequence[Any]
    transpose_solve: Sequence[Any]
    right: Sequence[Any]


def solve_operands(equation: Equation, operands: Sequence[Any]) -> SolveOperands:
    """Returns the operands of a `custom_linear_solve` equation, or one item for each, grouped by purpose."""
    first, second, third, last = accumulate(equation.params["const_lengths"])
    constants = (operands[:first], operands[first:second], operands[second:third], operands[third:last])
    return SolveOperands(*constants, operands[last:])


def _linear_solve(equation: Equation, sub: SubJaxpr) -> Transfer:
    operands = solve_operands(equation, range(len(equation.invars)))
    return Transfer(
        inputs=_entries((*operands.solve, *operands.right), "same"),
        outputs=_leaving(len(sub.jaxpr.outvars), "same"),
        gradients="around",
        # How the solution is found, from which guess, does not matter, and the solver's auxiliary outputs are constant.
        differentiated=(*operands.matvec, *operands.right),
    )


def _custom_rule(equation: Equation, sub: SubJaxpr) -> Transfer:
    return _around(equation, sub, inputs=_all(equation, "same"), opaque=False)


def _opaque(equation: Equation, sub: SubJaxpr) -> Transfer:
    return _around(equation, sub, inputs=(None,) * len(sub.jaxpr.invars), opaque=True)


def _around(equation: Equation, sub: SubJaxpr, *, inputs: tuple[Entry | None, ...], opaque: bool) -> Transfer:
    return Transfer(
        inputs=inputs,
        outputs=(None,) * len(sub.jaxpr.outvars),
        gradients="around",
        differentiated=tuple(range(closed_over(equation), len(equation.invars))),
        beside=not opaque,
        opaque=opaque,
    )


def _all(equation: Equation, how: Entering) -> tuple[Entry, ...]:
    return _entries(range(len(equation.invars)), how)


def _entries(operands: Iterable[int], how: Entering) -> tuple[Entry, ...]:
    return tuple(Entry(operand, how) for operand in operands)


def _leaving(number: int, how: Leaving) -> tuple[Leaving, ...]:
    return (how,) * number


TRANSFERS: Final[Mapping[FrameKind, Callable[[Equation, SubJaxpr], Transfer]]] = {
    "call": _call,
    "remat": _remat,
    "scan": _scan,
    "while": _while,
    "cond": _cond,
    "shard_map": _shard_map,
    "linear_solve": _linear_solve,
    "custom_rule": _custom_rule,
    "opaque": _opaque,
}
