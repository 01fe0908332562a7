"""A use is an operand at which an operation reads a value. The value's gradient is a sum over its uses.

The gradient of a value is a sum with a *term* for each use, which is the gradient that flows back through that use
only. An operation that reads a value twice, as `x * x` does, uses it twice. Calls and checkpoints use nothing
themselves; the operations that they run do. A loop, a branch and a custom rule use each operand as one operation.

A carry is used where an iteration uses it. The carry that an iteration receives *is* the output of the iteration
before, or the loop's initial carry, and the loop's output *is* that of the last iteration (`iterations.CarryOrigins`).
So a value has the same uses scanned as unrolled. Any other output of an iteration, a branch or a shard is a use of the
value that is returned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from gradscope.tracing.dataflow.liveness import Liveness
from gradscope.tracing.dataflow.reachability import Reach, Reachability, is_inexact
from gradscope.tracing.jaxpr.frames import OPERAND, Frame, FrameKey, Loop, ValueKey, region, resolve
from gradscope.tracing.jaxpr.iterations import is_carry
from gradscope.tracing.jaxpr.jaxcompat import Atom, is_literal
from gradscope.tracing.jaxpr.scopes import ScopePath
from gradscope.tracing.jaxpr.sharding import sharding_of
from gradscope.tracing.layers.layers import LayerCall
from gradscope.tracing.layers.sites import SiteName


class UseKey(NamedTuple):
    """A `UseKey` identifies a use by frame, equation (the number behind the last: the frame's outputs) and operand."""

    frame: FrameKey
    equation: int
    operand: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """A `Use` is one use of one floating-point value.

    Attributes:
        key: The frame, equation and operand.
        value: The value that is used; None for a constant.
        is_summand: Whether its term is one of those that sum to the value's gradient. It is not if the operation is
            inside a loop or a branch that uses the value as one operation, nor if a loop carries the value on.
        user: The operation that uses the value; for an output of a frame, the one that runs the frame.
        operand: Whether the use is an operand of that operation.
        name: The operation's name and the number of the operand.
        outputs: The operation's outputs that send a gradient back, by position.
        shape: The value's shape, of one iteration where the operation is in loops.
        dtype: The value's JAX dtype.
        sharding: The sharding that is part of its type; None where none is.
        loops: The loops around the operation, outermost first.
        reach: Whether and how a cotangent arrives from there in the backward pass.
        opaque: Whether it is inside a custom rule, where it cannot be observed.
        eliminated: Whether nothing that the function returns depends on the operation.
    """

    key: UseKey
    value: ValueKey | None
    is_summand: bool
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


def find_uses(root: Frame, layers: Sequence[LayerCall], liveness: Liveness, reachability: Reachability) -> list[Use]:
    """Returns every use of a floating-point value, frame by frame.

    Args:
        root: The root frame.
        layers: Its layers, operations among them.
        liveness: What any output depends on.
        reachability: What arrives where in the backward pass.
    """
    return list(_Finding(root, layers, liveness, reachability).uses())


class _Finding:
    """A `_Finding` finds the uses of one trace."""

    def __init__(
        self, root: Frame, layers: Sequence[LayerCall], liveness: Liveness, reachability: Reachability
    ) -> None:
        self._liveness = liveness
        self._reachability = reachability
        self._frames = {frame.key: frame for frame in root.walk()}
        self._users = {(layer.frame.key, layer.equations[0]): layer for layer in layers if layer.operation}

    def uses(self) -> Iterator[Use]:
        """Yields the uses by the operations of each frame, then by its outputs."""
        for frame in self._frames.values():
            for number, equation in enumerate(frame.jaxpr.eqns):
                user = self._users.get((frame.key, number))
                if user is not None:
                    keys = ((UseKey(frame.key, number, at), atom) for at, atom in _values(equation.invars))
                    yield from (self._operand(frame, key, atom, user) for key, atom in keys)
            if frame.parent is not None and frame.transfer.gradients == "through" and not frame.transfer.in_place:
                yield from self._returned(frame)

    def _operand(self, frame: Frame, key: UseKey, atom: Atom, user: LayerCall) -> Use:
        bodies = frame.children.get(key.equation, ())
        carried = any(is_carry(body, ValueKey(body.key, OPERAND, key.operand)) for body in bodies)
        use = self._use(frame, key, atom, user, self._reachability.through(frame, key.equation, key.operand))
        made = enumerate(frame.jaxpr.eqns[key.equation].outvars)
        return replace(
            use,
            is_summand=use.is_summand and not carried,
            outputs=tuple(at for at, variable in made if self._reachability.of(frame, variable) is Reach.GRADIENT),
            eliminated=key.equation not in self._liveness.used(frame),
        )

    def _returned(self, frame: Frame) -> Iterator[Use]:
        """Yields the uses of the values that one iteration, branch or shard returns and does not carry on."""
        *around, (number, _) = frame.key
        user = self._users[tuple(around), number]
        for position, atom in _values(frame.jaxpr.outvars):
            if not is_carry(self._frames[tuple(around)], ValueKey(tuple(around), number, position)):
                key = UseKey(frame.key, len(frame.jaxpr.eqns), position)
                use = self._use(frame, key, atom, user, self._reachability.from_outside(frame, position))
                yield replace(use, operand=False, name=replace(use.name, path=_leaving(frame, user.path)))

    def _use(self, frame: Frame, key: UseKey, atom: Atom, user: LayerCall, reach: Reach) -> Use:
        value = resolve(frame, atom)
        return Use(
            key=key,
            value=value,
            is_summand=value is not None and region(frame) == region(self._frames[value.frame]),
            user=user,
            name=SiteName(path=user.path, output=key.operand, layer=user.parent and user.parent.path),
            shape=tuple(atom.aval.shape),
            dtype=atom.aval.dtype,
            sharding=sharding_of(atom.aval),
            loops=frame.loops,
            reach=reach,
            opaque=frame.opaque,
        )


def _values(atoms: Sequence[Atom]) -> Iterator[tuple[int, Atom]]:
    """Returns the floating-point values among some atoms, with their positions."""
    return ((position, atom) for position, atom in enumerate(atoms) if not is_literal(atom) and is_inexact(atom))


def _leaving(frame: Frame, path: ScopePath) -> ScopePath:
    """Returns the name of a frame's outputs as users: the operation that runs the frame and the branch or iteration."""
    if frame.transfer.exclusive:
        return replace(path.scope(f"branch{frame.key[-1][1]}"), occurrence=path.occurrence)
    return replace(path.scope("turn").loop(), occurrence=path.occurrence)
