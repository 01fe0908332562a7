"""A program of very many equations is compiled in parts: stretches of its jaxpr that are functions of their own.

XLA's CPU backend orders the operations of a computation by the memory that they share, in time that grows with the cube
of their number. A function that is not inlined has an order of its own. Of 3,000 unrolled layers, the observing program
compiled in 311 CPU seconds and 3.7 GB as one, in 38 and 2.4 in parts, and the plain one in 142 and 1.9 (2026-11).

Parts end so that they repeat, as the layers of a network do, and equal ones are one function that is traced and lowered
once. Nothing is fused across the border of two parts, so that a result may round otherwise: below that size the program
is one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import jax
import numpy as np
from jax.experimental.xla_metadata import set_xla_metadata

from gradscope.tracing.jaxpr.jaxcompat import (
    Atom,
    Equation,
    Jaxpr,
    bind,
    is_dropped,
    is_literal,
    kind_of,
    sub_jaxprs,
    trace,
)

Output = TypeVar("Output")

#: Equations of a loss from which on its program is compiled in parts, where calls count as what they call. A ResNet-50
#: has 1,300. As one, 1,000 dense layers of 4,000 equations compile in 1.6 times the time of the plain program, in parts
#: in 0.6 times that.
_MANY: Final = 3_072

#: Equations of a part.
_PART: Final = 512

#: Equations that begin a repetition, by which it is recognised.
_ALIKE: Final = 8


class Part(NamedTuple):
    """A `Part` is a number of consecutive equations of a jaxpr.

    Attributes:
        numbers: The equations' numbers.
        reads: The variables from outside that they read.
        writes: The variables that they make and that are read behind them, or that the jaxpr returns.
    """

    numbers: range
    reads: tuple[Atom, ...]
    writes: tuple[Atom, ...]


def last_reads(jaxpr: Jaxpr) -> dict[Atom, int]:
    """Returns for each variable of an equation the last equation that reads it; one behind all for an output."""
    made = {variable for equation in jaxpr.eqns for variable in equation.outvars}
    last = {atom: n for n, equation in enumerate(jaxpr.eqns) for atom in equation.invars if not is_literal(atom)}
    last |= {atom: len(jaxpr.eqns) for atom in jaxpr.outvars if not is_literal(atom)}
    return {atom: number for atom, number in last.items() if atom in made}


def part_of(jaxpr: Jaxpr, numbers: range, last: Mapping[Atom, int]) -> Part:
    """Returns consecutive equations with what they read and write.

    Args:
        jaxpr: The jaxpr.
        numbers: The equations' numbers.
        last: As `last_reads` returns it.
    """
    equations = [jaxpr.eqns[number] for number in numbers]
    made = dict.fromkeys(variable for equation in equations for variable in equation.outvars)
    read = dict.fromkeys(atom for equation in equations for atom in equation.invars if not is_literal(atom))
    return Part(
        numbers=numbers,
        reads=tuple(atom for atom in read if atom not in made),
        writes=tuple(atom for atom in made if last.get(atom, 0) >= numbers.stop),
    )


def is_compiled_in_parts(loss: Jaxpr) -> bool:
    """Returns whether the observing program of a loss is compiled in parts: on the CPU, where it is very long."""
    return jax.default_backend() == "cpu" and _is_at_least(_MANY, loss)


def in_parts(program: Callable[..., Output]) -> Callable[..., Output]:
    """Returns a program that computes the same and is compiled in parts.

    Args:
        program: A pure function of pytrees.
    """

    def run(*arguments: Any) -> Output:
        jaxpr, constants, shapes = trace(program, *arguments)
        values: dict[Atom, Any] = dict(zip(jaxpr.constvars, constants, strict=True))
        values.update(zip(jaxpr.invars, jax.tree_util.tree_leaves(arguments), strict=True))
        last, kinds = last_reads(jaxpr), _kinds(jaxpr)
        functions: dict[Any, Callable[..., list[Any]]] = {}
        for numbers in _stretches(jaxpr, kinds):
            part = part_of(jaxpr, numbers, last)
            structure = _structure(jaxpr, part, kinds)
            if structure not in functions:
                functions[structure] = jax.jit(_function(jaxpr, part))
            with set_xla_metadata(inlineable="false"):
                written = functions[structure]([values[atom] for atom in part.reads])
            values.update(zip(part.writes, written, strict=True))
        outputs = [_value(values, atom) for atom in jaxpr.outvars]
        return jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(shapes), outputs)

    return run


def _function(jaxpr: Jaxpr, part: Part) -> Callable[[Sequence[Any]], list[Any]]:
    def run(reads: Sequence[Any]) -> list[Any]:
        values = dict(zip(part.reads, reads, strict=True))
        with set_xla_metadata(inlineable=None):  # which is for the function, and not for what it calls
            for number in part.numbers:
                equation = jaxpr.eqns[number]
                made = bind(equation, [_value(values, atom) for atom in equation.invars])
                values.update(zip(equation.outvars, made, strict=True))
        return [values[atom] for atom in part.writes]

    return run


def _value(values: Mapping[Atom, Any], atom: Atom) -> Any:
    return atom.val if is_literal(atom) else values[atom]


def _stretches(jaxpr: Jaxpr, kinds: Sequence[int]) -> Iterator[range]:
    """Yields the equations of each part: as many repetitions of what repeats there as fit, or else as many as fit."""
    sizes = [_size_of(equation) for equation in jaxpr.eqns]
    following = _following(kinds)
    start = 0
    while start < len(sizes):
        filled = list(itertools.takewhile(_PART.__ge__, itertools.accumulate(sizes[start : start + _PART])))
        most = max(1, len(filled))
        period = following[start] - start
        repeated = 0
        if period <= most // 2:
            ahead = zip(kinds[start : start + most - period], kinds[start + period : start + most], strict=True)
            alike = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], ahead))
            repeated = (period + alike) // period * period
        end = start + (repeated if repeated > period else most)
        yield range(start, min(end, len(sizes)))
        start = end


def _following(kinds: Sequence[int]) -> list[int]:
    """Returns for each equation the next one that begins with the same kinds of equations; far away if none does."""
    following = [2 * len(kinds)] * len(kinds)
    latest: dict[Any, int] = {}
    for at in reversed(range(len(kinds))):
        ahead = tuple(kinds[at : at + _ALIKE])
        following[at] = latest.get(ahead, following[at])
        latest[ahead] = at
    return following


def _kinds(jaxpr: Jaxpr) -> list[int]:
    """Returns a number for each equation, the same for those that differ in their variables alone."""
    numbers: dict[Any, int] = {}
    return [numbers.setdefault(_kind(equation), len(numbers)) for equation in jaxpr.eqns]


def _kind(equation: Equation) -> Any:
    params = tuple((name, _hashable(value)) for name, value in sorted(equation.params.items()))
    operands = tuple(
        (str(atom.aval), np.asarray(atom.val).tobytes()) if is_literal(atom) else atom.aval for atom in equation.invars
    )
    made = tuple((variable.aval, is_dropped(variable)) for variable in equation.outvars)
    return equation.primitive, params, operands, made, equation.ctx


def _hashable(value: Any) -> Any:
    """Returns a parameter by which equal equations can be looked up; one that cannot is equal to itself alone."""
    try:
        hash(value)
    except TypeError:
        return id(value)
    return type(value), value


def _structure(jaxpr: Jaxpr, part: Part, kinds: Sequence[int]) -> Any:
    """Returns what parts have in common that compute the same of what they read."""
    numbering: dict[Atom, int] = {atom: at for at, atom in enumerate(part.reads)}
    equations: list[Any] = []
    for number in part.numbers:
        equation = jaxpr.eqns[number]
        read = tuple(-1 if is_literal(atom) else numbering[atom] for atom in equation.invars)
        equations.append((kinds[number], read))
        numbering |= {variable: len(numbering) + at for at, variable in enumerate(equation.outvars)}
    return tuple(equations), tuple(numbering[atom] for atom in part.writes)


def _is_at_least(size: int, jaxpr: Jaxpr) -> bool:
    for equation in jaxpr.eqns:
        size -= _size_of(equation)
        if size <= 0:
            return True
    return False


def _size_of(equation: Equation) -> int:
    """Returns the number of operations of an equation: 1, or those of what it calls."""
    return sum(map(_size_of, sub_jaxprs(equation)[0].jaxpr.eqns)) if kind_of(equation) == "call" else 1
