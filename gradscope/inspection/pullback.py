"""`Pullbacks` counts the floating-point operations of an equation's vector-Jacobian product, traced on shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from gradscope.inspection.flops import ABOUT_DEVICES
from gradscope.inspection.frame_flops import program_flops
from gradscope.tracing.dataflow.backward import Marks
from gradscope.tracing.dataflow.liveness import needed_for
from gradscope.tracing.jaxpr.derivatives.vjp import pulled_back
from gradscope.tracing.jaxpr.frames import Frame, frame_tree, splits_around
from gradscope.tracing.jaxpr.jaxcompat import Atom, Equation, is_literal, trace
from gradscope.tracing.jaxpr.sharding import axes_of_type, in_shards, varying


class Pullbacks:
    """Pullbacks counts the operations of vector-Jacobian products, and traces each kind of equation once."""

    def __init__(self) -> None:
        self._known: dict[Any, int] = {}

    def flops_of(self, equation: Equation, active: Sequence[bool], around: Frame) -> int:
        """Returns the floating-point operations from cotangents of an equation's outputs to those of its operands.

        Args:
            equation: A differentiable equation.
            active: For each operand, whether its cotangent is needed.
            around: The frame that it is in.
        """
        if equation.primitive.name in ABOUT_DEVICES:
            return 0
        key = (equation.primitive, tuple(_shape(atom) for atom in equation.invars), tuple(active), _key(equation))
        if key not in self._known:
            self._known[key] = in_shards(splits_around(around), lambda: _traced_flops(equation, active))
        return self._known[key]


def _key(equation: Equation) -> Any:
    """Returns a key for the parameters of an equation; the equation's own id where they are not hashable."""
    parameters = tuple(sorted(equation.params.items()))
    try:
        hash(parameters)
    except TypeError:
        return id(equation)
    return parameters


def _traced_flops(equation: Equation, active: Sequence[bool]) -> int:
    chosen = [number for number, is_active in enumerate(active) if is_active]
    inexact = [n for n, variable in enumerate(equation.outvars) if jnp.issubdtype(variable.aval.dtype, jnp.inexact)]

    def backwards(operands: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
        return pulled_back(equation, operands, chosen, dict(zip(inexact, cotangents, strict=True)))

    operands = [atom.val if is_literal(atom) else _argument(atom) for atom in equation.invars]
    jaxpr, _, _ = trace(backwards, operands, [_argument(equation.outvars[number]) for number in inexact])
    root = frame_tree(jaxpr)
    return program_flops(root, needed_for(root, [True] * len(jaxpr.outvars), Marks()))


def _argument(atom: Atom) -> Any:
    """Returns what has the type of an atom: its shape, or zeros where its values vary between shards."""
    axes = axes_of_type(atom.aval)
    return varying(jnp.zeros(atom.aval.shape, atom.aval.dtype), axes) if axes else _shape(atom)


def _shape(atom: Atom) -> Any:
    return jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype)
