"""Frames are the tree of all jaxprs of a trace, from the root down into the jaxprs that its equations run.

A *frame* is one jaxpr run by one equation of its parent frame. A function that is called twice has one jaxpr and two
frames. A *value* is named by where it is made: the frame's key, the equation's number (`OPERAND` for a value that the
frame receives), and the position among that equation's outputs. Values that are the same in several frames (the output
of a `jit` is what its body made) resolve to one name, the innermost definition.

Frames are immutable. An analysis returns its results in mappings by frame key (`dataflow`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

from gradscope.tracing.jaxpr.jaxcompat import (
    CUSTOM_RULES,
    Atom,
    Equation,
    FrameKind,
    Jaxpr,
    SubJaxpr,
    is_dropped,
    is_literal,
    kind_of,
    scopes,
    sub_jaxprs,
)
from gradscope.tracing.jaxpr.module_loops import repeats_a_module
from gradscope.tracing.jaxpr.scopes import ScopePath
from gradscope.tracing.jaxpr.source_lines import source_of
from gradscope.tracing.jaxpr.transfers import Transfer, root_transfer, transfer_of

#: Equation number of a value that its frame receives and does not make.
OPERAND: Final = -1

#: The way from the root: (equation, branch) per level.
FrameKey: TypeAlias = tuple[tuple[int, int], ...]


class ValueKey(NamedTuple):
    """A `ValueKey` identifies a value by where it is made."""

    frame: FrameKey
    equation: int
    position: int


class Loop(NamedTuple):
    """A `Loop` is a loop around a frame. The shards of a `shard_map` are the iterations of a loop that all run at once.

    Attributes:
        length: Its number of iterations; None where it is only known once the loop has run.
        order: Program order at which it starts.
        reverse: Whether the iterations run from the last to the first.
    """

    length: int | None
    order: int
    reverse: bool = False


def iterations(loops: Sequence[Loop]) -> Iterator[tuple[int, ...]]:
    """Returns every combination of iterations of some loops; a loop of unknown length counts as one iteration."""
    return itertools.product(*(range(1 if loop.length is None else loop.length) for loop in loops))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Frame:
    """A `Frame` is one jaxpr together with the equation that runs it.

    Attributes:
        key: The way from the root.
        kind: What kind of equation runs it.
        transfer: How values pass between that equation and the frame.
        jaxpr: The open jaxpr.
        path: The scopes around it.
        loops: The loops around it, outermost first.
        parent: The frame around it; None for the root.
        equation: The parent's equation that runs it; None for the root.
        children: The frames inside: for each equation that runs any, its frames by branch.
        start: Program order at which the frame starts.
        orders: Program order of each equation: when it has run, counted over all frames.
        definitions: For each variable of the jaxpr, which equation makes it and at which position.
    """

    key: FrameKey
    kind: FrameKind
    transfer: Transfer
    jaxpr: Jaxpr
    path: ScopePath
    loops: tuple[Loop, ...] = ()
    parent: Frame | None = None
    equation: Equation | None = None
    children: Mapping[int, Sequence[Frame]]
    start: int = 0
    orders: Sequence[int]
    definitions: Mapping[Atom, tuple[int, int]]

    def walk(self) -> Iterator[Frame]:
        """Yields this frame and all frames inside it."""
        yield self
        for branches in self.children.values():
            for child in branches:
                yield from child.walk()

    @property
    def forward_only(self) -> bool:
        """Whether the frame's values would have gradients if reverse mode could pass the loops around it."""
        if self.parent is None or self.bypassed:
            return False
        return self.transfer.gradients == "barred" or self.parent.forward_only

    @property
    def bypassed(self) -> bool:
        """Whether no gradient arrives in this frame, because an equation around it has a derivative rule of its own."""
        return self.transfer.gradients == "around" or (self.parent is not None and self.parent.bypassed)

    @property
    def beside(self) -> bool:
        """Whether this frame is inside a custom rule whose function the interpreter runs in addition, to observe it."""
        return self.transfer.beside or (self.parent is not None and self.parent.beside)

    @property
    def opaque(self) -> bool:
        """Whether this frame is inside an equation that the interpreter does not enter."""
        return self.transfer.opaque or (self.parent is not None and self.parent.opaque)


def frame_tree(jaxpr: Jaxpr) -> Frame:
    """Returns the root frame of a traced function, with all frames inside it."""
    children: dict[int, list[Frame]] = {}
    orders: list[int] = []
    root = Frame(
        key=(),
        kind="root",
        transfer=root_transfer(jaxpr),
        jaxpr=jaxpr,
        path=ScopePath(),
        children=children,
        orders=orders,
        definitions=_definitions(jaxpr),
    )
    _fill(root, children, orders)
    return root


def _fill(frame: Frame, children: dict[int, list[Frame]], orders: list[int]) -> int:
    """Fills a new frame's children and orders, and returns the program order at which it has run."""
    order = frame.start
    for number, equation in enumerate(frame.jaxpr.eqns):
        for sub in sub_jaxprs(equation):
            child, order = _child(frame, number, equation, sub, order)
            children.setdefault(number, []).append(child)
        orders.append(order)
        order += 1
    return order


def _definitions(jaxpr: Jaxpr) -> dict[Atom, tuple[int, int]]:
    definitions = {variable: (OPERAND, at) for at, variable in enumerate(jaxpr.invars)}
    for number, equation in enumerate(jaxpr.eqns):
        definitions.update((v, (number, at)) for at, v in enumerate(equation.outvars) if not is_dropped(v))
    return definitions


def _child(frame: Frame, number: int, equation: Equation, sub: SubJaxpr, order: int) -> tuple[Frame, int]:
    """Returns a frame inside another, with all frames inside it, and the program order at which it has run."""
    path, loops = frame.path, frame.loops
    for scope in scopes(equation):
        path = path.scope(scope.name)
    transfer = transfer_of(equation, sub)
    if transfer.loop is not None:
        path = path.loop_within() if repeats_a_module(equation, sub.jaxpr) else path.loop()
        loops = (*loops, Loop(transfer.loop.length, order, transfer.loop.reverse))
    children: dict[int, list[Frame]] = {}
    orders: list[int] = []
    child = Frame(
        key=(*frame.key, (number, sub.branch)),
        kind=sub.kind,
        transfer=transfer,
        jaxpr=sub.jaxpr,
        path=path,
        loops=loops,
        parent=frame,
        equation=equation,
        children=children,
        start=order + 1,
        orders=orders,
        definitions=_definitions(sub.jaxpr),
    )
    return child, _fill(child, children, orders)


def source_in(frame: Frame, equation: Equation) -> str | None:
    """Returns `file:line` of the user's code that traced an equation of a frame; None where unknown.

    Inside a library function with a `jit` of its own, which JAX may have traced for another caller, it is the line that
    called the function.
    """
    found = source_of(equation)
    if found is None and frame.parent is not None and frame.equation is not None:
        return source_in(frame.parent, frame.equation)
    return found


def variable_of(frame: Frame, value: ValueKey) -> Any:
    """Returns the variable of a value of this frame."""
    variables = frame.jaxpr.invars if value.equation == OPERAND else frame.jaxpr.eqns[value.equation].outvars
    return variables[value.position]


def region(frame: Frame) -> FrameKey:
    """Returns the outermost frame that a frame runs in place in: calls and checkpoints compute nothing themselves."""
    while frame.transfer.in_place and frame.parent is not None:
        frame = frame.parent
    return frame.key


def run_in_place(equation: Equation) -> SubJaxpr | None:
    """Returns the jaxpr that an equation runs once in its place, the function of a derivative rule included."""
    inside = equation.primitive.name in CUSTOM_RULES or kind_of(equation) in ("call", "remat")
    return sub_jaxprs(equation)[0] if inside else None


def case_count(equation: Equation) -> int | None:
    """Returns among how many cases the first operand of an equation chooses; None where it does not choose."""
    if equation.primitive.name == "select_n":
        return len(equation.invars) - 1
    return len(sub_jaxprs(equation)) if kind_of(equation) == "cond" else None


def operands(frame: Frame) -> Sequence[Atom | None]:
    """Returns for each variable that a frame receives the parent's atom it comes from; None where it is not one."""
    atoms = [] if frame.equation is None else frame.equation.invars
    return [None if entry is None else atoms[entry.operand] for entry in frame.transfer.inputs]


def unchanged_operand(frame: Frame, position: int) -> Atom | None:
    """Returns the parent's atom whose value a variable of a frame has; None for a carry, a slice, and if not known."""
    entry = frame.transfer.inputs[position]
    return (
        None if entry is None or entry.how != "same" or frame.equation is None else frame.equation.invars[entry.operand]
    )


def resolve(frame: Frame, atom: Atom) -> ValueKey | None:
    """Returns the value that an atom of `frame` represents, at its innermost definition; None for constants."""
    if is_literal(atom) or atom not in frame.definitions:
        return None
    equation, position = frame.definitions[atom]
    return _resolve_operand(frame, position) if equation == OPERAND else made_at(frame, equation, position)


def made_at(frame: Frame, equation: int, position: int) -> ValueKey:
    """Returns the value that an equation of a frame makes at a position, at its innermost definition."""
    inner = None
    for child in frame.children.get(equation, ()):
        if child.transfer.in_place:
            inner = resolve(child, child.jaxpr.outvars[position])
    return inner or ValueKey(frame.key, equation, position)


def _resolve_operand(frame: Frame, position: int) -> ValueKey | None:
    outer = unchanged_operand(frame, position)
    if frame.parent is not None and outer is not None:
        return resolve(frame.parent, outer)
    return ValueKey(frame.key, OPERAND, position)


def splits_around(frame: Frame) -> Iterator[Equation]:
    """Yields the `shard_map`s whose shards a frame is in, the innermost first."""
    loop = frame.transfer.loop
    if loop is not None and loop.parallel and frame.equation is not None:
        yield frame.equation
    if frame.parent is not None:
        yield from splits_around(frame.parent)
