"""Descent: following values forwards, through every frame, to all that is made from them.

The counterpart of `flow`, which follows backwards. What a loop carries is made from a value as soon as some turn makes
it so; what a branch hands on is made from whatever chose the branch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import TypeAlias

from gradscope.tracing.frames import Frame
from gradscope.tracing.jaxcompat import Atom, Equation, is_dropped, is_literal, scan_arity

#: For each frame, its variables that are made from what was followed.
Descendants: TypeAlias = dict[Frame, set[Atom]]

#: Whether something passes through an equation to one of its outputs.
Passes: TypeAlias = Callable[[Equation, Atom], bool]


def descendants(root: Frame, seeds: Mapping[Frame, Collection[Atom]], passes: Passes = lambda *_: True) -> Descendants:
    """All that is made from some values.

    Args:
        root: The root frame.
        seeds: The values, by the frame whose variables they are.
        passes: What passes through an equation; where it does not, the output is not made from the value.

    Returns:
        For each frame that has any, the variables made from the values; the values themselves among them.
    """
    found: Descendants = {frame: set(atoms) for frame, atoms in seeds.items()}
    seeded = {frame for seed in seeds for frame in _around(seed)}
    _Descent(found, seeded, passes).spread(root, [False] * len(root.jaxpr.invars))
    return found


def _around(frame: Frame | None) -> list[Frame]:
    return [] if frame is None else [frame, *_around(frame.parent)]


class _Descent:
    """One following.

    Args:
        found: What has been found; grows.
        seeded: Frames in which, or inside of which, values are followed from.
        passes: As for `descendants`.
    """

    def __init__(self, found: Descendants, seeded: AbstractSet[Frame], passes: Passes) -> None:
        self._found = found
        self._seeded = seeded
        self._passes = passes

    def spread(self, frame: Frame, received: Sequence[bool]) -> list[bool]:
        """Follow through one frame; returns which of its outputs are made from the values."""
        made = self._found.setdefault(frame, set())
        made.update(variable for variable, is_made in zip(frame.jaxpr.invars, received, strict=True) if is_made)
        for number, equation in enumerate(frame.jaxpr.eqns):
            operands = [_is_in(made, atom) for atom in equation.invars]
            outputs = self._through(frame, number, operands)
            for variable, is_made in zip(equation.outvars, outputs, strict=True):
                if is_made and not is_dropped(variable) and self._passes(equation, variable):
                    made.add(variable)
        return [_is_in(made, atom) for atom in frame.jaxpr.outvars]

    def _through(self, frame: Frame, number: int, operands: list[bool]) -> list[bool]:
        equation = frame.jaxpr.eqns[number]
        inside = frame.children.get(number, [])
        if not any(operands) and not any(child in self._seeded for child in inside):
            return [False] * len(equation.outvars)
        if not inside or inside[0].kind == "opaque":
            return [any(operands)] * len(equation.outvars)
        if inside[0].kind == "cond":
            branches = [self.spread(branch, operands[1:]) for branch in inside]
            return [operands[0] or any(made) for made in zip(*branches, strict=True)]
        if inside[0].kind == "scan":
            arity = scan_arity(equation)
            return self._turns(inside[0], operands, arity.constants, arity.carries)
        if inside[0].kind == "while":
            of_condition, of_body = equation.params["cond_nconsts"], equation.params["body_nconsts"]
            made = self._turns(inside[0], operands[of_condition:], of_body, len(equation.outvars))
            return [True] * len(made) if any(operands[:of_condition]) else made
        return self.spread(inside[0], operands)

    def _turns(self, body: Frame, operands: list[bool], constants: int, carries: int) -> list[bool]:
        while True:
            outputs = self.spread(body, operands)
            carried = operands[constants : constants + carries]
            grown = [before or after for before, after in zip(carried, outputs[:carries], strict=True)]
            if grown == carried:
                return [*grown, *outputs[carries:]]
            operands = [*operands[:constants], *grown, *operands[constants + carries :]]


def _is_in(made: set[Atom], atom: Atom) -> bool:
    return not is_literal(atom) and atom in made
