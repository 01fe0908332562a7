"""JAX's own evaluation of a jaxpr, in a dozen lines, with something added wherever a gradient is needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
from jax.extend import core

#: Equations that only run others in place.
CALLS = {"jit", "pjit", "checkpoint", "remat2"}


class Place(NamedTuple):
    """Where something is added: at which operation in the order in which they run, and at which of its values."""

    operation: int
    position: int


class Perturbed:
    """A jaxpr run with something added to the floating-point outputs or operands of each equation, calls in place.

    Args:
        at: To what.
        added: What is added there, in order; None for nothing.

    Attributes:
        values: What it was added to, and the sum if it was.
        places: Where.
        primitives: Of every operation.
    """

    def __init__(self, at: Literal["outputs", "operands"], added: Sequence[Any] | None = None) -> None:
        self.at = at
        self.added = added
        self.values: list[Any] = []
        self.places: list[Place] = []
        self.primitives: list[str] = []

    def run(self, jaxpr: Any, constants: Any, arguments: Any) -> list[Any]:
        values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*constants, *arguments], strict=True))
        for equation in jaxpr.eqns:
            operands = [atom.val if isinstance(atom, core.Literal) else values[atom] for atom in equation.invars]
            values.update(zip(equation.outvars, self.made(equation, operands), strict=True))
        return [atom.val if isinstance(atom, core.Literal) else values[atom] for atom in jaxpr.outvars]

    def made(self, equation: Any, operands: list[Any]) -> list[Any]:
        inner = equation.params.get("jaxpr")
        if inner is not None and equation.primitive.name in CALLS:
            return self.run(getattr(inner, "jaxpr", inner), getattr(inner, "consts", ()), operands)
        self.primitives.append(equation.primitive.name)
        if self.at == "operands":
            known = [isinstance(atom, core.Literal) for atom in equation.invars]
            operands = [value if known[at] else self.perturbed(at, value) for at, value in enumerate(operands)]
        bound = equation.primitive.get_bind_params(equation.params)
        functions, params = bound if isinstance(bound, tuple) else ((), bound)
        out = equation.primitive.bind(*functions, *operands, **params)
        outputs = list(out) if equation.primitive.multiple_results else [out]
        return [self.perturbed(*each) for each in enumerate(outputs)] if self.at == "outputs" else outputs

    def perturbed(self, position: int, value: Any) -> Any:
        if not jnp.issubdtype(value.dtype, jnp.inexact):
            return value
        if self.added is not None:
            value = value + self.added[len(self.values)]
        self.values.append(value)
        self.places.append(Place(len(self.primitives) - 1, position))
        return value
