"""Frames: every jaxpr of a trace in its place, from the root down into what its equations run.

A *frame* is one jaxpr run by one equation of its parent frame. A function that is called twice has one jaxpr and two
frames. A *value* is named by where it is made: the frame's key, the equation's number (`OPERAND` for a value that the
frame receives), and the position among that equation's outputs. Values that are one and the same in several frames
(what a `jit` hands out is what its body made) resolve to one name, the innermost definition.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

from gradscope.tracing.jaxpr.jaxcompat import (
    Atom,
    Equation,
    FrameKind,
    Jaxpr,
    SubJaxpr,
    is_dropped,
    is_literal,
    loop_length,
    scan_arity,
    scopes,
    source_of,
    sub_jaxprs,
)
from gradscope.tracing.jaxpr.module_loops import repeats_a_module
from gradscope.tracing.jaxpr.scopes import ScopePath

#: Equation number of a value that its frame receives and does not make.
OPERAND: Final = -1

#: The way from the root: (equation, branch) per level.
FrameKey: TypeAlias = tuple[tuple[int, int], ...]


class ValueKey(NamedTuple):
    """Where a value is made."""

    frame: FrameKey
    equation: int
    position: int


class Loop(NamedTuple):
    """A loop around a frame. The shards of a `shard_map` are the turns of a loop that all run at once.

    Attributes:
        length: Its number of turns; None where only running it tells.
        order: Program order at which it starts.
        backwards: Whether the turns run from the last to the first.
    """

    length: int | None
    order: int
    backwards: bool = False


def iterations(loops: Sequence[Loop]) -> Iterator[tuple[int, ...]]:
    """Every combination of turns of some loops; a loop of unknown length counts as one turn."""
    return itertools.product(*(range(1 if loop.length is None else loop.length) for loop in loops))


@dataclass(slots=True, kw_only=True, eq=False)
class Frame:
    """One jaxpr in its place.

    Attributes:
        key: The way from the root.
        kind: How the parent's equation runs it.
        jaxpr: The open jaxpr.
        path: The scopes around it.
        loops: The loops around it, outermost first.
        parent: The frame around it; None for the root.
        equation: The parent's equation that runs it; None for the root.
        children: The frames inside: for each equation that runs any, its frames by branch.
        start: Program order at which the frame starts.
        orders: Program order of each equation: when it has run, counted over all frames.
        live: Equations that the loss depends on; filled by `liveness`.
        used: Equations that anything depends on that the function returns; filled by `liveness`.
        needed_outputs: Outputs of the jaxpr that the loss depends on; filled by `liveness`.
        reach: What arrives at each variable in the backward pass, if anything does; filled by `reversal`.
        operand_reach: For each equation, what arrives at each of its operands through it alone; filled by `reversal`.
        output_reach: What arrives at each output of the jaxpr from outside; filled by `reversal`.
        definitions: For each variable of the jaxpr, which equation makes it and at which position.
    """

    key: FrameKey
    kind: FrameKind
    jaxpr: Jaxpr
    path: ScopePath
    loops: tuple[Loop, ...] = ()
    parent: Frame | None = None
    equation: Equation | None = None
    children: dict[int, list[Frame]] = field(default_factory=dict[int, "list[Frame]"])
    start: int = 0
    orders: list[int] = field(default_factory=list[int])
    live: set[int] = field(default_factory=set[int])
    used: set[int] = field(default_factory=set[int])
    needed_outputs: set[Atom] = field(default_factory=set[Atom])
    reach: dict[Atom, int] = field(default_factory=dict[Atom, int])
    operand_reach: dict[int, Sequence[int]] = field(default_factory=dict[int, Sequence[int]])
    output_reach: Sequence[int] = ()
    definitions: dict[Atom, tuple[int, int]] = field(default_factory=dict[Atom, tuple[int, int]])

    def walk(self) -> Iterator[Frame]:
        """This frame and all inside it."""
        yield self
        for branches in self.children.values():
            for child in branches:
                yield from child.walk()

    @property
    def forward_only(self) -> bool:
        """Whether reverse-mode differentiation cannot reach what this frame computes."""
        return self.kind == "while" or (self.parent is not None and self.parent.forward_only)

    @property
    def opaque(self) -> bool:
        """Whether this frame is inside a custom rule, which is run as it stands."""
        return self.kind == "opaque" or (self.parent is not None and self.parent.opaque)


def frame_tree(jaxpr: Jaxpr) -> Frame:
    """The root frame of a traced function, with all frames inside it."""
    root = Frame(key=(), kind="root", jaxpr=jaxpr, path=ScopePath())
    _fill(root)
    return root


def _fill(frame: Frame) -> int:
    """Fill a frame and all inside it; returns the program order at which it has run."""
    _define(frame)
    order = frame.start
    for number, equation in enumerate(frame.jaxpr.eqns):
        for sub in sub_jaxprs(equation):
            child = _child(frame, number, equation, sub, order)
            frame.children.setdefault(number, []).append(child)
            order = _fill(child)
        frame.orders.append(order)
        order += 1
    return order


def _define(frame: Frame) -> None:
    definitions = frame.definitions
    definitions.update((variable, (OPERAND, at)) for at, variable in enumerate(frame.jaxpr.invars))
    for number, equation in enumerate(frame.jaxpr.eqns):
        definitions.update((v, (number, at)) for at, v in enumerate(equation.outvars) if not is_dropped(v))


def _child(frame: Frame, number: int, equation: Equation, sub: SubJaxpr, order: int) -> Frame:
    path = frame.path
    for scope in scopes(equation):
        path = path.scope(scope.name)
    loops = frame.loops
    if sub.kind in ("scan", "while", "shard_map"):
        path = path.loop_within() if repeats_a_module(equation, sub.jaxpr) else path.loop()
        loops = (*loops, Loop(loop_length(equation), order, bool(equation.params.get("reverse"))))
    key = (*frame.key, (number, sub.branch))
    return Frame(
        key=key,
        kind=sub.kind,
        jaxpr=sub.jaxpr,
        path=path,
        loops=loops,
        parent=frame,
        equation=equation,
        start=order + 1,
    )


def source_in(frame: Frame, equation: Equation) -> str | None:
    """`file:line` of the user's code that traced an equation of a frame; None where unknown.

    Of what a library function does inside a `jit` of its own, which JAX may have traced for another caller, it is the
    line that called it.
    """
    found = source_of(equation)
    if found is None and frame.parent is not None and frame.equation is not None:
        return source_in(frame.parent, frame.equation)
    return found


def variable_of(frame: Frame, value: ValueKey) -> Any:
    """The variable of a value of this frame."""
    variables = frame.jaxpr.invars if value.equation == OPERAND else frame.jaxpr.eqns[value.equation].outvars
    return variables[value.position]


def region(frame: Frame) -> FrameKey:
    """The outermost frame that a frame runs in place in: calls and checkpoints compute nothing but what they run."""
    while frame.kind in ("call", "remat") and frame.parent is not None:
        frame = frame.parent
    return frame.key


def operands(frame: Frame) -> Sequence[Atom | None]:
    """For each variable that a frame receives, the parent's atom it comes from; None where no single atom does."""
    equation = frame.equation
    if equation is None or frame.kind == "opaque":
        return [None] * len(frame.jaxpr.invars)
    if frame.kind == "cond":
        return equation.invars[1:]
    if frame.kind == "while":
        return equation.invars[equation.params["cond_nconsts"] :]
    return equation.invars


def unchanged_operands(frame: Frame) -> Sequence[Atom | None]:
    """As `operands`, with None where the frame receives another value than the atom's: a carry, a slice, a shard."""
    atoms = operands(frame)
    equation = frame.equation
    if equation is None or frame.kind in ("call", "remat", "cond", "opaque"):
        return atoms
    constants = 0
    if frame.kind == "scan":
        constants = scan_arity(equation).constants
    elif frame.kind == "while":
        constants = equation.params["body_nconsts"]
    return [*atoms[:constants], *[None] * (len(atoms) - constants)]


def resolve(frame: Frame, atom: Atom) -> ValueKey | None:
    """The value an atom of `frame` stands for, at its innermost definition; None for literals and constants."""
    if is_literal(atom) or atom not in frame.definitions:
        return None
    equation, position = frame.definitions[atom]
    if equation == OPERAND:
        return _resolve_operand(frame, position)
    inner = None
    for child in frame.children.get(equation, ()):
        if child.kind in ("call", "remat"):
            inner = resolve(child, child.jaxpr.outvars[position])
    return inner or ValueKey(frame.key, equation, position)


def _resolve_operand(frame: Frame, position: int) -> ValueKey | None:
    outer = unchanged_operands(frame)[position]
    if frame.parent is not None and outer is not None:
        return resolve(frame.parent, outer)
    return ValueKey(frame.key, OPERAND, position)
