"""Uses: every place where an operation reads a value, by which the value's gradient comes back in parts.

The gradient of a value is a sum with a *term* for each use: what flows back through that use alone. An operation that
reads a value twice, as `x * x` does, uses it twice. Calls and checkpoints use nothing themselves: what they run does. A
loop, a branch and a custom rule use what they are handed as one operation each.

What a loop carries on is used where a turn uses it: the carry that a turn receives *is* what the turn before made, or
what went into the loop, and what comes out *is* what the last turn made (`turns.Homes`). So a value has the same uses
scanned as unrolled. What a turn, a branch or a shard hands out otherwise is used by being handed out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from gradscope.tracing.dataflow.reachability import Reach, is_inexact
from gradscope.tracing.jaxpr.frames import OPERAND, Frame, FrameKey, Loop, ValueKey, region, resolve
from gradscope.tracing.jaxpr.iterations import is_carry
from gradscope.tracing.jaxpr.jaxcompat import Atom, is_literal
from gradscope.tracing.jaxpr.scopes import ScopePath
from gradscope.tracing.jaxpr.sharding import sharding_of
from gradscope.tracing.layers.layers import LayerCall
from gradscope.tracing.layers.sites import SiteName


class UseKey(NamedTuple):
    """Where a value is used: a frame, an equation of it (behind the last: the frame's outputs), and the operand."""

    frame: FrameKey
    equation: int
    operand: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """One use of one floating-point value.

    Attributes:
        key: Where it is.
        value: What is used; None for a constant.
        whole: Whether its term is one of those that sum to the value's gradient. It is not where the operation lies
            inside a loop or a branch that uses the value as one, nor where a loop carries the value into its turns.
        user: The operation that uses it; of what a frame hands out, the one that runs the frame.
        operand: Whether it is an operand of that operation.
        name: The operation's name and the number of the operand.
        outputs: Those of the operation's outputs that send something back, by position.
        shape: The value's shape, of one turn where the operation lies in loops.
        dtype: Its dtype, as JAX has it.
        sharding: The sharding that is part of its type; None where none is.
        loops: The loops around the operation, outermost first.
        reach: What arrives from there in the backward pass.
        opaque: Whether it lies inside a custom rule, where it cannot be observed.
        eliminated: Whether nothing that the function returns depends on the operation.
    """

    key: UseKey
    value: ValueKey | None
    whole: bool
    user: LayerCall
    operand: bool = True
    name: SiteName
    shape: tuple[int, ...]
    dtype: Any
    sharding: Any
    loops: tuple[Loop, ...]
    reach: Reach
    opaque: bool
    outputs: tuple[int, ...] = ()
    eliminated: bool = False


def find_uses(root: Frame, layers: Sequence[LayerCall]) -> list[Use]:
    """Every use of a floating-point value, frame by frame.

    Args:
        root: The root frame, reach marked.
        layers: Its layers, operations among them.
    """
    return list(_Finding(root, layers).uses())


class _Finding:
    """Finds the uses of one trace."""

    def __init__(self, root: Frame, layers: Sequence[LayerCall]) -> None:
        self._frames = {frame.key: frame for frame in root.walk()}
        self._users = {(layer.frame.key, layer.equations[0]): layer for layer in layers if layer.operation}

    def uses(self) -> Iterator[Use]:
        """The uses by the operations of each frame, then by its outputs."""
        for frame in self._frames.values():
            for number, equation in enumerate(frame.jaxpr.eqns):
                user = self._users.get((frame.key, number))
                if user is not None:
                    keys = ((UseKey(frame.key, number, at), atom) for at, atom in _values(equation.invars))
                    yield from (self._operand(frame, key, atom, user) for key, atom in keys)
            if frame.kind in ("scan", "cond", "shard_map"):
                yield from self._handed_out(frame)

    def _operand(self, frame: Frame, key: UseKey, atom: Atom, user: LayerCall) -> Use:
        bodies = frame.children.get(key.equation, ())
        carried = any(is_carry(body, ValueKey(body.key, OPERAND, key.operand)) for body in bodies)
        arriving = frame.operand_reach.get(key.equation, ())
        use = self._use(frame, key, atom, user, arriving)
        made = enumerate(frame.jaxpr.eqns[key.equation].outvars)
        return replace(
            use,
            whole=use.whole and not carried,
            outputs=tuple(at for at, variable in made if frame.reach.get(variable) == Reach.GRADIENT),
            eliminated=key.equation not in frame.used,
        )

    def _handed_out(self, frame: Frame) -> Iterator[Use]:
        """The uses of what one turn, branch or shard hands out and does not carry on."""
        *around, (number, _) = frame.key
        user = self._users[tuple(around), number]
        for position, atom in _values(frame.jaxpr.outvars):
            if not is_carry(self._frames[tuple(around)], ValueKey(tuple(around), number, position)):
                key = UseKey(frame.key, len(frame.jaxpr.eqns), position)
                use = self._use(frame, key, atom, user, frame.output_reach)
                yield replace(use, operand=False, name=replace(use.name, path=_leaving(frame, user.path)))

    def _use(self, frame: Frame, key: UseKey, atom: Atom, user: LayerCall, arriving: Sequence[int]) -> Use:
        value = resolve(frame, atom)
        reach = arriving[key.operand] if key.operand < len(arriving) else Reach.NOTHING
        return Use(
            key=key,
            value=value,
            whole=value is not None and region(frame) == region(self._frames[value.frame]),
            user=user,
            name=SiteName(path=user.path, output=key.operand, layer=user.parent and user.parent.path),
            shape=tuple(atom.aval.shape),
            dtype=atom.aval.dtype,
            sharding=sharding_of(atom.aval),
            loops=frame.loops,
            reach=Reach.BARRED if frame.forward_only else Reach(reach),
            opaque=frame.opaque,
        )


def _values(atoms: Sequence[Atom]) -> Iterator[tuple[int, Atom]]:
    """The floating-point values among some atoms, and their positions."""
    return ((position, atom) for position, atom in enumerate(atoms) if not is_literal(atom) and is_inexact(atom))


def _leaving(frame: Frame, path: ScopePath) -> ScopePath:
    """What a frame's outputs are called as users: the operation that runs the frame, and which branch or turn it is."""
    if frame.kind == "cond":
        return replace(path.scope(f"branch{frame.key[-1][1]}"), occurrence=path.occurrence)
    return replace(path.scope("turn").loop(), occurrence=path.occurrence)
