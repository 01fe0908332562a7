"""Gradient floors are how far rounding alone can move the gradients that a layer returns, as they are sums.

The gradient of the bias of an attention's keys is zero but for rounding, and so is that of a bias before a batch norm:
the terms of a sum cancel. The error of such a gradient, relative to itself, means nothing. Its floor follows from the
size of the terms and their number, as in a comparison of two dumps (`rounding_floors`); here both are those of the
layer's own run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.judging.rounding.floor import Floor
from gradscope.comparison.judging.rounding.rounding_floors import floor_of_sum
from gradscope.comparison.judging.rounding.tensor_sizes import TermSum
from gradscope.primitive_groups import ADDITIONS, COPIES
from gradscope.tracing.jaxpr.jaxcompat import Atom, Equation, Jaxpr, bind, is_literal, sub_jaxprs, trace
from gradscope.tracing.jaxpr.transfers import transfer_of

#: Return their operand, perhaps in another shape or type, or with the other sign.
_PASSING: Final = COPIES | {"neg"}


def gradient_floors(vjp: Callable[..., Any], arguments: Sequence[Array], dtype: str) -> list[Floor | None]:
    """Returns the floors of what a function returns; None for what is no sum, or is one of a loop's iterations.

    Args:
        vjp: The function, which returns gradients.
        arguments: Its arguments.
        dtype: The coarsest dtype that it computes in.
    """
    jaxpr, constants, _ = trace(vjp, *arguments)
    terms: list[list[int]] = []

    def scales(arguments: Sequence[Any]) -> list[list[Any]]:
        sums = _Sums(jaxpr, constants, arguments, [[]] * len(arguments))
        found = [sums.of(atom) for atom in jaxpr.outvars]
        terms[:] = [[count for count, _ in each] for each in found]
        return [[scale for _, scale in each] for each in found]

    found = jax.device_get(jax.jit(scales)(list(arguments)))
    return [
        _floor([TermSum(terms=n, scale=float(scale)) for n, scale in zip(counts, each, strict=True)], atom, dtype)
        for counts, each, atom in zip(terms, found, jaxpr.outvars, strict=True)
    ]


def accepted(floor: Floor | None, expected: Array) -> float:
    """Returns the l2 norm of a difference that is rounding; 0 where the terms of what is expected do not cancel."""
    if floor is None or not np.linalg.norm(np.abs(expected).astype(np.float64).ravel()) <= floor.cancelled:
        return 0.0
    return floor.l2


def _floor(sums: Sequence[TermSum], atom: Atom, dtype: str) -> Floor | None:
    known = (each for each in sums if each.scale > 0 and math.isfinite(each.scale))
    largest = max(known, key=lambda each: each.expected, default=None)
    return None if largest is None else floor_of_sum(largest, math.prod(atom.aval.shape), dtype)


class _Sums:
    """`_Sums` runs a jaxpr, and notes of each variable the sums that it is: how many terms, and their size.

    Args:
        jaxpr: The open jaxpr.
        constants: Values of its constant variables.
        arguments: Values of its inputs.
        sums: The sums that those are.
    """

    def __init__(
        self,
        jaxpr: Jaxpr,
        constants: Sequence[Any],
        arguments: Sequence[Any],
        sums: Sequence[list[tuple[int, Any]]],
    ) -> None:
        received = [*jaxpr.constvars, *jaxpr.invars]
        self._values: dict[Atom, Any] = dict(zip(received, [*constants, *arguments], strict=True))
        self._sums: dict[Atom, list[tuple[int, Any]]] = dict(zip(jaxpr.invars, sums, strict=True))
        for equation in jaxpr.eqns:
            self._run(equation)

    def of(self, atom: Atom) -> list[tuple[int, Any]]:
        """Returns the number of terms and their root mean square, of each sum that makes a variable."""
        return [] if is_literal(atom) else self._sums.get(atom, [])

    def read(self, atom: Atom) -> Any:
        """Returns the value of an atom."""
        return atom.val if is_literal(atom) else self._values[atom]

    def _run(self, equation: Equation) -> None:
        operands = [self.read(atom) for atom in equation.invars]
        inside = next((each for each in sub_jaxprs(equation) if transfer_of(equation, each).in_place), None)
        if inside is not None:
            body = _Sums(inside.jaxpr, inside.constants, operands, [self.of(atom) for atom in equation.invars])
            for variable, atom in zip(equation.outvars, inside.jaxpr.outvars, strict=True):
                self._values[variable], self._sums[variable] = body.read(atom), body.of(atom)
            return
        self._values.update(zip(equation.outvars, bind(equation, operands), strict=True))
        if len(equation.outvars) == 1:  # one without results, as a loop of which nothing is used, makes no sums
            self._sums[equation.outvars[0]] = self._made(equation, operands)

    def _made(self, equation: Equation, operands: Sequence[Any]) -> list[tuple[int, Any]]:
        name, (made,) = equation.primitive.name, equation.outvars
        if name in _PASSING or name in ADDITIONS:
            return [each for atom in equation.invars for each in self.of(atom)]
        if name == "reduce_sum":
            terms = operands[0].size // max(1, made.aval.size)
            return [(terms, _rms(operands[0])), *((terms * n, scale) for n, scale in self.of(equation.invars[0]))]
        if name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            terms = math.prod(operands[0].shape[axis] for axis in contracted)
            return [(terms, _rms(operands[0]) * _rms(operands[1]))]
        return []


def _rms(array: Any) -> Any:
    return jnp.sqrt(jnp.mean(jnp.square(jnp.abs(array)).astype(jnp.float32)))
