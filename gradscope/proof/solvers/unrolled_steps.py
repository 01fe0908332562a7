"""Unrolled steps are one step of a solver that Python repeats, so that a trace has it several times in a row.

They are found as equations that are alike block by block: of the same operations, each on the same constants, on what
the block has made itself, or on what the block before it has made at the same place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import jax

from gradscope.tracing.jaxpr.jaxcompat import Atom, Equation, Jaxpr, is_literal, sub_jaxprs

#: A step that is there fewer times may be no step of a loop: two layers of one weight are.
_LEAST: Final = 3
#: Longer jaxprs are not searched: the time grows with the square.
_LONGEST: Final = 2000

#: What an equation reads: how many blocks ago it was made, by which equation of the block and as which of its outputs;
#: None and what it is for all that blocks do not make.
_Operand: TypeAlias = tuple[int | None, Any]
#: The outputs of a block's equations, one list for each.
_Made: TypeAlias = list[list[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnrolledSteps:
    """`UnrolledSteps` are the equations of a jaxpr that repeat one step.

    Attributes:
        end: The number of the equation behind the last step.
        length: The number of equations of a step.
        times: The number of steps in a row that are alike.
        operands: What each of these equations reads.
    """

    end: int
    length: int
    times: int
    operands: Sequence[Sequence[_Operand]]


def unrolled_steps(jaxpr: Jaxpr) -> UnrolledSteps | None:
    """Returns the shortest step that a jaxpr repeats at least three times in a row; None where it repeats none.

    The step that reads where a solver starts is another one.
    """
    if len(jaxpr.eqns) > _LONGEST:
        return None
    kinds = [_kind(equation) for equation in jaxpr.eqns]
    for length in range(1, len(kinds) // _LEAST + 1):
        for end in _ends(kinds, length):
            steps = UnrolledSteps(end=end, length=length, times=1, operands=_operands(jaxpr, end - length, length))
            while _repeats(jaxpr, kinds, end - (steps.times + 1) * length, steps):
                steps = replace(steps, times=steps.times + 1)
            if steps.times >= _LEAST and any(blocks == 1 for row in steps.operands for blocks, _ in row):
                return steps
    return None


def taken_again(
    steps: UnrolledSteps,
    equations: Sequence[Equation],
    read: Callable[[Atom], Any],
    run: Callable[[Equation, list[Any]], Sequence[Any]],
    times: int,
) -> dict[Atom, Any]:
    """Returns the values of the variables of the last two steps after the step has been taken some more times.

    Args:
        steps: The steps.
        equations: The equations of the last two, which have been run.
        read: Returns the value of a literal, a constant, or a variable that these equations or those before have made.
        run: Runs one equation on its operands.
        times: How many more times.
    """
    last = equations[steps.length :]

    def step(_: Any, state: tuple[_Made, _Made]) -> tuple[_Made, _Made]:
        made: _Made = []
        blocks = (made, state[1])
        for equation, operands in zip(last, steps.operands, strict=True):
            atoms = zip(equation.invars, operands, strict=True)
            values = [read(atom) if ago is None else blocks[ago][at[0]][at[1]] for atom, (ago, at) in atoms]
            made.append(list(run(equation, values)))
        return state[1], made

    start = [[read(variable) for variable in each.outvars] for each in equations]
    before, made = jax.lax.fori_loop(0, times, step, (start[: steps.length], start[steps.length :]))
    pairs = zip(equations, (*before, *made), strict=True)
    return {variable: value for each, values in pairs for variable, value in zip(each.outvars, values, strict=True)}


def _kind(equation: Equation) -> str:
    """Returns a text that is the same for equations that do the same with operands of the same types."""
    types = [str(atom.aval) for atom in (*equation.invars, *equation.outvars)]
    inside = [str(_kinds_inside(sub.jaxpr)) for sub in sub_jaxprs(equation)]
    params = "" if inside else str(equation.params)
    return f"{equation.primitive.name} {types} {params} {inside}"


def _kinds_inside(jaxpr: Jaxpr) -> list[Any]:
    numbers: dict[Atom, int] = {}
    written = [
        [
            atom.val if is_literal(atom) else numbers.setdefault(atom, len(numbers))
            for atom in (*each.invars, *each.outvars)
        ]
        for each in jaxpr.eqns
    ]
    return [*zip(map(_kind, jaxpr.eqns), written, strict=True)]


def _ends(kinds: Sequence[str], length: int) -> Iterator[int]:
    """Yields the ends of blocks of a length that are alike the least number of times in a row, the last first."""
    alike = 0
    runs: list[int] = []
    for at in range(length, len(kinds)):
        alike = alike + 1 if kinds[at] == kinds[at - length] else 0
        if alike >= (_LEAST - 1) * length:
            runs.append(at + 1)
    yield from reversed(runs)


def _repeats(jaxpr: Jaxpr, kinds: Sequence[str], start: int, steps: UnrolledSteps) -> bool:
    """Returns whether a block of equations is the step that others repeat."""
    end = start + steps.length
    alike = start >= 0 and kinds[start:end] == kinds[steps.end - steps.length : steps.end]
    return alike and _operands(jaxpr, start, steps.length) == steps.operands


def _operands(jaxpr: Jaxpr, start: int, length: int) -> list[list[_Operand]]:
    """Returns what each equation of a block reads, alike for blocks that repeat a step."""
    places = {
        variable: (blocks, (number - first, output))
        for blocks, first in ((1, start - length), (0, start))
        for number in range(max(first, 0), first + length)
        for output, variable in enumerate(jaxpr.eqns[number].outvars)
    }
    return [
        [(None, str(atom.val)) if is_literal(atom) else places.get(atom, (None, atom)) for atom in each.invars]
        for each in jaxpr.eqns[start : start + length]
    ]
