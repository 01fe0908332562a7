"""How reverse mode gets from the loss to each value, if at all.

A gradient with respect to an activation or an input is more than the user's own step asks of JAX. What lies before a
`while` loop has none, and asking for it is an error even where the parameters are not concerned: an input that a loop
prepares, what a frozen layer hands to a loop. So it is told beforehand where a cotangent can arrive.

Sharp edge: a `scan`, a branch or a checkpoint whose outputs matter in part gets zeros from JAX for the other part.
Zeros are no gradient, and yet a loop inside bars their way as it bars a gradient's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Final

import jax.numpy as jnp

from gradscope.tracing.dataflow.backward import Marks, follow, follow_inside
from gradscope.tracing.jaxpr.frames import Frame, ValueKey
from gradscope.tracing.jaxpr.jaxcompat import Atom, Equation


class Reach(IntEnum):
    """What arrives at a value in the backward pass; where several things do, the greatest."""

    NOTHING = 0
    ZEROS = 1
    GRADIENT = 2
    BARRED = 3  # something that would have to pass what reverse mode cannot


#: Constant wherever they have a derivative.
_CONSTANT: Final = frozenset({"stop_gradient", "floor", "ceil", "round", "sign"})

#: What JAX refuses to differentiate, even where nothing depends on the result.
_WITHOUT_RULE: Final = frozenset({"pure_callback", "io_callback", "ffi_call"})


def mark_reach(root: Frame) -> list[Reach]:
    """Mark how the root's first output, the loss, reaches the values of the root and of all frames inside it.

    Returns:
        For each variable that the root receives, how the loss reaches it.
    """
    levels = follow(root, [Reach.GRADIENT, *[Reach.NOTHING] * (len(root.jaxpr.outvars) - 1)], _Reversal(Marks()))
    return [Reach(level) for level in levels]


def mark_reach_from(root: Frame, values: Iterable[ValueKey], cuts: frozenset[ValueKey]) -> list[Reach]:
    """Mark how some values, in the place of the loss, reach the values of the root and of all frames inside it.

    Args:
        root: The root frame, no reach marked yet.
        values: The values that are differentiated.
        cuts: Values that count as constant.

    Returns:
        For each variable that the root receives, how they reach it.
    """
    marks = Marks(seeds=dict.fromkeys(values, Reach.GRADIENT), cuts=cuts)
    levels = follow(root, [Reach.NOTHING] * len(root.jaxpr.outvars), _Reversal(marks))
    return [Reach(level) for level in levels]


class _Reversal:
    """Follows what arrives: levels are those of `Reach`, and integers have none."""

    def __init__(self, marks: Marks) -> None:
        self.marks = marks

    def leave(self, frame: Frame, outputs: Sequence[int], levels: dict[Atom, int]) -> None:
        frame.reach |= levels  # of a frame followed again, no lower than before
        frame.output_reach = outputs

    def through(self, frame: Frame, number: int, outputs: Sequence[int]) -> Sequence[int]:
        levels = frame.operand_reach[number] = self._operands(frame, number, outputs)
        return levels

    def _operands(self, frame: Frame, number: int, outputs: Sequence[int]) -> Sequence[int]:
        equation = frame.jaxpr.eqns[number]
        name = equation.primitive.name
        inside = frame.children.get(number)
        arriving = _of_inexact(equation.outvars, outputs)
        if is_constant(equation):
            operands: Sequence[int] = [Reach.NOTHING] * len(equation.invars)
        elif inside is None or inside[0].kind == "opaque":
            operands = [max(arriving, default=Reach.NOTHING)] * len(equation.invars)
        else:
            begun = any(arriving) or self.marks.level_inside(inside) > Reach.NOTHING
            filled = inside[0].kind not in ("call", "while") and begun
            arriving = [max(level, Reach.ZEROS) for level in arriving] if filled else arriving
            operands = follow_inside(frame, number, _of_inexact(equation.outvars, arriving), self)
        if name == "while":
            operands = [Reach.BARRED if level else Reach.NOTHING for level in operands]
        if name in _WITHOUT_RULE:
            operands = [Reach.BARRED] * len(equation.invars)
        return _of_inexact(equation.invars, operands)


def is_constant(equation: Equation) -> bool:
    """Whether an equation's outputs are constant wherever they have a derivative."""
    return equation.primitive.name in _CONSTANT


def _of_inexact(atoms: Sequence[Atom], levels: Sequence[int]) -> list[int]:
    return [level if is_inexact(atom) else Reach.NOTHING for atom, level in zip(atoms, levels, strict=True)]


def is_inexact(atom: Atom) -> bool:
    """Whether an atom's dtype has gradients at all."""
    return hasattr(atom.aval, "dtype") and jnp.issubdtype(atom.aval.dtype, jnp.inexact)
