"""`parameter_uses` yields how equations use parameters: as the matrix of a product, or otherwise.

A signal that is multiplied by a parameter, or added to it, element by element is not mixed by it. Nor is one that is
only compared with it, as with the codes of a quantisation: of such a product indices are made, and no number goes on.
A product of what such indices become, ones among zeros, picks rows of it. What is called may have a product inside.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, Final, NamedTuple

import jax.numpy as jnp

from gradscope.primitive_groups import ADDITIONS, MATRIX_PRODUCTS, MULTIPLICATIONS
from gradscope.tracing.jaxpr.frames import Frame
from gradscope.tracing.jaxpr.jaxcompat import Atom, Equation, is_literal
from gradscope.tracing.layers.parameter_views import ParameterOrigins

_ELEMENTWISE: Final = MULTIPLICATIONS | ADDITIONS
_PICKING: Final = frozenset({"argmax", "argmin"})


class ParameterUse(NamedTuple):
    """`ParameterUse` is one use of a parameter.

    Attributes:
        equation: The number of the equation.
        name: The parameter's name.
        mixes: Whether the signal may be mixed by the parameter, as by a matrix.
    """

    equation: int
    name: str
    mixes: bool


def parameter_uses(frame: Frame, origins: ParameterOrigins) -> Iterator[ParameterUse]:
    """Yields the uses of parameters in a frame that tell whether they mix signals."""
    sums = (equation.invars[0] for equation in frame.jaxpr.eqns if equation.primitive.name == "reduce_sum")
    summed = {atom for atom in sums if not is_literal(atom)}
    compared, picking = _compared(frame), _picking(frame)
    for number, equation in enumerate(frame.jaxpr.eqns):
        if not equation.outvars:
            continue
        is_product = equation.primitive.name in MATRIX_PRODUCTS
        is_lookup = equation.outvars[0] in compared or any(atom in picking for atom in _variables(equation))
        mixes = (is_product and not is_lookup) or _has_product(frame, number)
        # What is summed at once may be a product of matrices.
        is_elementwise = equation.primitive.name in _ELEMENTWISE and equation.outvars[0] not in summed
        if not (is_product or mixes or is_elementwise):
            continue
        for atom in equation.invars:
            # What has no more elements than a parameter is made of parameters.
            wider = is_product or mixes or equation.outvars[0].aval.size > origins.size(frame, atom)
            for name in origins.names(frame, atom) if wider else ():
                yield ParameterUse(number, name, mixes)


def _has_product(frame: Frame, number: int) -> bool:
    """Returns whether what an equation calls has a product inside."""
    return any(
        equation.primitive.name in MATRIX_PRODUCTS or _has_product(child, inner)
        for child in frame.children.get(number, ())
        for inner, equation in enumerate(child.jaxpr.eqns)
    )


def _compared(frame: Frame) -> Collection[Atom]:
    """Returns the values of a frame of which only indices and truth values are made."""
    read: set[Atom] = set()
    kept = {atom for atom in frame.jaxpr.outvars if not is_literal(atom)}
    for equation in reversed(frame.jaxpr.eqns):
        goes_on = any(_is_number(made) and (made in kept or made not in read) for made in equation.outvars)
        read.update(_variables(equation))
        if goes_on:
            kept.update(_variables(equation))
    return read - kept


def _picking(frame: Frame) -> Collection[Atom]:
    """Returns the values of a frame that are made of the indices of largest or smallest elements alone."""
    found: set[Atom] = set()
    for equation in frame.jaxpr.eqns:
        read = _variables(equation)
        if equation.primitive.name in _PICKING or (read and found.issuperset(read)):
            found.update(equation.outvars)
    return found


def _variables(equation: Equation) -> list[Atom]:
    return [atom for atom in equation.invars if not is_literal(atom)]


def _is_number(atom: Any) -> bool:
    return jnp.issubdtype(getattr(atom.aval, "dtype", jnp.float32), jnp.inexact)
