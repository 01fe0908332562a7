"""A program of very many equations is compiled in parts: stretches of its jaxpr that are functions of their own.

XLA's CPU backend orders the operations of a computation by the memory that they share, in time that grows with the cube
of their number. A function that is not inlined has an order of its own. Of 3,000 unrolled layers, the observing program
compiled in 311 CPU seconds and 3.7 GB as one, in 38 and 2.4 in parts, and the plain one in 142 and 1.9 (2026-11).

Nothing is fused across the border of two parts, so that a result may round otherwise: below that size the program is
one. Tracing takes a third longer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import jax
from jax.experimental.xla_metadata import set_xla_metadata

from gradscope.tracing.jaxpr.jaxcompat import Atom, Equation, Jaxpr, bind, is_literal, kind_of, sub_jaxprs, trace

Output = TypeVar("Output")

#: Equations of a loss from which on its program is compiled in parts, where calls count as what they call. A ResNet-50
#: has 1,300. As one, 1,000 dense layers of 3,000 equations compile in 1.2 times the time of the plain program.
_MANY: Final = 4_096

#: Equations of a part.
_PART: Final = 512


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
        last = last_reads(jaxpr)
        for numbers in _stretches(jaxpr):
            part = part_of(jaxpr, numbers, last)
            with set_xla_metadata(inlineable="false"):
                written = jax.jit(_function(jaxpr, part))([values[atom] for atom in part.reads])
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


def _stretches(jaxpr: Jaxpr) -> Iterator[range]:
    start, filled = 0, 0
    for number, equation in enumerate(jaxpr.eqns):
        size = _size_of(equation)
        if filled and filled + size > _PART:
            yield range(start, number)
            start, filled = number, 0
        filled += size
    yield range(start, len(jaxpr.eqns))


def _is_at_least(size: int, jaxpr: Jaxpr) -> bool:
    for equation in jaxpr.eqns:
        size -= _size_of(equation)
        if size <= 0:
            return True
    return False


def _size_of(equation: Equation) -> int:
    """Returns the number of operations of an equation: 1, or those of what it calls."""
    return sum(map(_size_of, sub_jaxprs(equation)[0].jaxpr.eqns)) if kind_of(equation) == "call" else 1
