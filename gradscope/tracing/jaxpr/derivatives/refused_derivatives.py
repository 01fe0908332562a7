"""Some of JAX's primitives refuse to be differentiated by some operands, or with some parameters.

A program may have them all the same: where no gradient passes them, behind a `stop_gradient`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import jax
import jax.numpy as jnp

from gradscope.tracing.jaxpr.jaxcompat import Equation, bind

#: Primitives whose rule is to refuse, that of a Pallas kernel in reverse mode.
_ALWAYS: Final = frozenset({"pure_callback", "io_callback", "buffer_callback", "ffi_call", "pallas_call"})

#: Primitives whose rule refuses with some parameters, or in some versions: all singular vectors, eigenvectors, a
#: function of elements at places, any function of windows, the derivative of a pool with gaps, sums over groups or in
#: a batch of groups, and functions with a batching rule of their own or a name for the compiler.
_SOMETIMES: Final = frozenset(
    {
        "composite", "custom_vmap_call", "eig", "eigh", "qr", "ragged_dot_general",
        "reduce_window", "scatter", "select_and_gather_add", "svd",
    }
)  # fmt: skip


def refused_operands(equation: Equation) -> range:
    """Returns the positions of the operands that JAX does not differentiate an equation by, though by the others.

    They are the order or the shape of a special function, what a linear function has besides its argument, the
    initial values of a reduction, and factors at places that may be the same.
    """
    match equation.primitive.name:
        case "polygamma":
            return range(1)
        case "regularized_incomplete_beta":
            return range(2)
        case "linear_call":
            return range(equation.params["num_callee_consts"] + equation.params["num_res"])
        case "reduce":
            return range(len(equation.invars) // 2, len(equation.invars))
        case "scatter-mul" if not equation.params["unique_indices"]:
            return range(2, 3)
        case _:
            return range(0)


def refuses(equation: Equation) -> bool:
    """Returns whether the rule of a primitive refuses to differentiate an equation by any of its operands."""
    name = equation.primitive.name
    if name == "custom_linear_solve":  # the derivative of a linear system is solved with its transpose
        return equation.params["jaxprs"].transpose_solve is None
    return name in _ALWAYS or (name in _SOMETIMES and _fails(equation))


# An analysis asks for each equation several times, and an attempt takes a millisecond.
@lru_cache(maxsize=256)
def _fails(equation: Equation) -> bool:
    operands = [jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype) for atom in equation.invars]
    inexact = [at for at, each in enumerate(operands) if _is_inexact(each)]

    def derivative(*values: Any) -> Any:
        def run(*moved: Any) -> list[Any]:
            by_position = dict(zip(inexact, moved, strict=True))
            outputs = bind(equation, [by_position.get(at, value) for at, value in enumerate(values)])
            return list(filter(_is_inexact, outputs))

        outputs, pull_back = jax.vjp(run, *(values[at] for at in inexact))
        return pull_back(outputs)

    try:
        jax.eval_shape(derivative, *operands)
    # A function that asks for a mesh axis cannot be tried by itself: one with a batching rule or a name refuses so far.
    except (NameError, NotImplementedError, TypeError, ValueError):
        return True
    return False


def _is_inexact(value: Any) -> bool:
    return jnp.issubdtype(value.dtype, jnp.inexact)
