"""Reachability states whether and how reverse mode gets from the loss to each value.

The user's own step does not request gradients with respect to activations or inputs. A value before a `while` loop has
none, and JAX raises an error if it is requested, even where no parameter is concerned: for an input that a loop
prepares, or the output of a frozen layer that a loop reads. So this module computes beforehand where a cotangent
arrives.

Sharp edge: for a `scan`, a branch or a checkpoint of which only some outputs matter, JAX makes zeros for the others.
Zeros are no gradient, but a `while` loop inside blocks them as it blocks a gradient.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final

import jax.numpy as jnp
from jax.interpreters import ad

from gradscope.naming import IterationIndex
from gradscope.tracing.dataflow.backward import Marks, follow, follow_inside
from gradscope.tracing.dataflow.forward import FrameVariable
from gradscope.tracing.jaxpr.derivatives.refused_derivatives import refused_operands, refuses
from gradscope.tracing.jaxpr.frames import Frame, FrameKey, ValueKey
from gradscope.tracing.jaxpr.iterations import ValueAt
from gradscope.tracing.jaxpr.jaxcompat import OPERAND_BY_OPERAND, Atom, Equation, is_literal


class Reach(IntEnum):
    """A `Reach` states what arrives at a value in the backward pass; of several, the greatest."""

    NOTHING = 0
    ZEROS = 1
    GRADIENT = 2
    BARRED = 3  # a gradient that would have to pass an equation that reverse mode cannot


#: Primitives that are constant wherever they have a derivative.
_CONSTANT: Final = frozenset({"stop_gradient", "floor", "ceil", "round", "sign"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Reachability:
    """`Reachability` states how cotangents reach the values of a root frame and of all frames inside it.

    Attributes:
        arguments: How they reach each variable that the root receives.
    """

    arguments: tuple[Reach, ...]
    _values: dict[FrameKey, dict[Atom, int]] = field(default_factory=dict[Any, Any])
    _operands: dict[FrameKey, dict[int, Sequence[int]]] = field(default_factory=dict[Any, Any])
    _outputs: dict[FrameKey, Sequence[int]] = field(default_factory=dict[Any, Any])
    _by_iteration: dict[tuple[FrameKey, IterationIndex], dict[Atom, int]] = field(default_factory=dict[Any, Any])
    _alike: dict[tuple[FrameKey, IterationIndex], IterationIndex] = field(default_factory=dict[Any, Any])

    def at(self, frame: Frame, variable: Atom, iteration: IterationIndex) -> Reach:
        """Returns what arrives at a variable in one iteration of the loops around its frame.

        Args:
            frame: The frame.
            variable: The variable.
            iteration: One number per loop. Iterations are told apart only from what a query differentiates.
        """
        if frame.forward_only:
            return Reach.BARRED
        return Reach(self._by_iteration.get((frame.key, self._followed(frame, iteration)), {}).get(variable, 0))

    def _followed(self, frame: Frame, iteration: IterationIndex) -> IterationIndex:
        """Returns the iteration that was followed in the place of one that is like it."""
        around = () if frame.parent is None else self._followed(frame.parent, iteration)
        if frame.transfer.loop is None:
            return around
        own = (*around, iteration[len(around)])
        return self._alike.get((frame.key, own), own)

    def of(self, frame: Frame, variable: Atom) -> Reach:
        """Returns what arrives at a variable of a frame."""
        return Reach.BARRED if frame.forward_only else Reach(self._values.get(frame.key, {}).get(variable, 0))

    def through(self, frame: Frame, number: int, operand: int) -> Reach:
        """Returns what arrives at one operand of an equation through only that equation."""
        return _reach(frame, self._operands.get(frame.key, {}).get(number), operand)

    def from_outside(self, frame: Frame, output: int) -> Reach:
        """Returns what arrives at one output of a frame's jaxpr from outside the frame."""
        return _reach(frame, self._outputs.get(frame.key), output)


def _reach(frame: Frame, levels: Sequence[int] | None, position: int) -> Reach:
    if frame.forward_only:
        return Reach.BARRED
    return Reach.NOTHING if levels is None else Reach(levels[position])


def reachability_of(root: Frame, constants: Collection[FrameVariable] = ()) -> Reachability:
    """Returns the reachability from the root's first output, the loss.

    Args:
        root: The root frame.
        constants: Variables that no cotangent arrives at, because they are not differentiated.
    """
    outputs = [Reach.GRADIENT, *[Reach.NOTHING] * (len(root.jaxpr.outvars) - 1)]
    return _reachability(root, outputs, Marks(), constants)


def reachability_from(
    root: Frame, values: Iterable[ValueKey], constants: Collection[FrameVariable] = ()
) -> Reachability:
    """Returns the reachability from some values, in all iterations of the loops around them, instead of the loss."""
    marks = Marks(seeds=dict.fromkeys(values, Reach.GRADIENT))
    return _reachability(root, [Reach.NOTHING] * len(root.jaxpr.outvars), marks, constants)


def reachability_by_iteration(
    root: Frame, values: Iterable[ValueAt], cuts: Iterable[ValueAt], constants: Collection[FrameVariable] = ()
) -> Reachability:
    """Returns the reachability from some values instead of the loss, with that of every single iteration.

    Args:
        root: The root frame.
        values: The values that are differentiated, each in one iteration of the loops around it.
        cuts: Values that count as constant, likewise.
        constants: Variables that no cotangent arrives at, because they are not differentiated.
    """
    seeds = frozenset(values)
    marks = Marks(
        seeds=dict.fromkeys((seed.value for seed in seeds), Reach.GRADIENT), seeded_at=seeds, cut_at=frozenset(cuts)
    )
    return _reachability(root, [Reach.NOTHING] * len(root.jaxpr.outvars), marks, constants)


def _reachability(
    root: Frame, outputs: Sequence[Reach], marks: Marks, constants: Collection[FrameVariable]
) -> Reachability:
    analysis = _Analysis(marks, constants)
    arguments = tuple(map(Reach, follow(root, outputs, analysis)))
    return Reachability(
        arguments=arguments,
        _values=analysis.values,
        _operands=analysis.operands,
        _outputs=analysis.outputs,
        _by_iteration=analysis.by_iteration,
        _alike=marks.alike,
    )


class _Analysis:
    """An `_Analysis` follows cotangents: levels are those of `Reach`, and integers have none."""

    def __init__(self, marks: Marks, constants: Collection[FrameVariable]) -> None:
        self.marks = marks
        self._constants = constants
        self.values: dict[FrameKey, dict[Atom, int]] = {}
        self.operands: dict[FrameKey, dict[int, Sequence[int]]] = {}
        self.outputs: dict[FrameKey, Sequence[int]] = {}
        self.by_iteration: dict[tuple[FrameKey, IterationIndex], dict[Atom, int]] = {}

    def leave(self, frame: Frame, outputs: Sequence[int], levels: dict[Atom, int]) -> None:
        if self._constants:
            levels = {atom: level for atom, level in levels.items() if not self._is_constant(frame, atom)}
            outputs = self._varying(frame, frame.jaxpr.outvars, outputs)
        values = self.values.setdefault(frame.key, {})
        values.update((atom, max(level, values.get(atom, 0))) for atom, level in levels.items())
        self.outputs[frame.key] = _highest(outputs, self.outputs.get(frame.key))
        self.by_iteration[frame.key, self.marks.iteration] = levels

    def through(self, frame: Frame, number: int, outputs: Sequence[int]) -> Sequence[int]:
        levels = self._varying(frame, frame.jaxpr.eqns[number].invars, self._levels(frame, number, outputs))
        operands = self.operands.setdefault(frame.key, {})
        operands[number] = _highest(levels, operands.get(number))
        return levels

    def _varying(self, frame: Frame, atoms: Sequence[Atom], levels: Sequence[int]) -> Sequence[int]:
        if not self._constants:
            return levels
        return [0 if self._is_constant(frame, atom) else level for atom, level in zip(atoms, levels, strict=True)]

    def _is_constant(self, frame: Frame, atom: Atom) -> bool:
        return not is_literal(atom) and FrameVariable(frame, atom) in self._constants

    def _levels(self, frame: Frame, number: int, outputs: Sequence[int]) -> Sequence[int]:
        equation = frame.jaxpr.eqns[number]
        arriving = _of_inexact(equation.outvars, outputs)
        if is_without_derivative(frame, number):
            operands: Sequence[int] = [Reach.BARRED] * len(equation.invars)
        elif is_constant(equation):
            operands = [Reach.NOTHING] * len(equation.invars)
        elif number in frame.children:
            operands = self._through_frames(frame, number, arriving)
        elif equation.primitive.name in OPERAND_BY_OPERAND:
            operands = arriving
        else:
            operands = [max(arriving, default=Reach.NOTHING)] * len(equation.invars)
        refused = refused_operands(equation)
        levels = [level and Reach.BARRED if at in refused else level for at, level in enumerate(operands)]
        return _of_inexact(equation.invars, levels)

    def _through_frames(self, frame: Frame, number: int, arriving: Sequence[int]) -> Sequence[int]:
        equation, inside = frame.jaxpr.eqns[number], frame.children[number]
        transfer = inside[0].transfer
        if transfer.opaque or transfer.gradients == "around":
            most = max(arriving, default=Reach.NOTHING)
            operands = [most if at in transfer.differentiated else Reach.NOTHING for at in range(len(equation.invars))]
        else:
            begun = any(arriving) or self.marks.level_inside(inside) > Reach.NOTHING
            if transfer.fills_zeros and begun:
                arriving = _of_inexact(equation.outvars, [max(level, Reach.ZEROS) for level in arriving])
            operands = follow_inside(frame, number, arriving, self)
        for predicate in transfer.predicates:
            operands[predicate] = Reach.NOTHING
        return [level and Reach.BARRED for level in operands] if transfer.gradients == "barred" else operands


def _highest(levels: Sequence[int], before: Sequence[int] | None) -> Sequence[int]:
    """Returns the levels of a frame that is followed again, in another iteration."""
    return levels if before is None else list(map(max, levels, before))


def is_without_derivative(frame: Frame, number: int) -> bool:
    """Returns whether JAX refuses to differentiate an equation, as one of `pmax`, even where nothing depends on it.

    A program may still have it, behind a `stop_gradient`.
    """
    equation = frame.jaxpr.eqns[number]
    primitive = equation.primitive
    is_known = number in frame.children or primitive.call_primitive or primitive in ad.primitive_jvps
    return not is_known or refuses(equation)


def is_constant(equation: Equation) -> bool:
    """Returns whether an equation's outputs are constant wherever they have a derivative."""
    return equation.primitive.name in _CONSTANT


def _of_inexact(atoms: Sequence[Atom], levels: Sequence[int]) -> list[int]:
    return [level if is_inexact(atom) else Reach.NOTHING for atom, level in zip(atoms, levels, strict=True)]


def is_inexact(atom: Atom) -> bool:
    """Returns whether an atom's dtype has gradients at all."""
    return hasattr(atom.aval, "dtype") and jnp.issubdtype(atom.aval.dtype, jnp.inexact)
