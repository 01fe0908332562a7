"""Some of JAX's primitives refuse to be differentiated by some operands, or with some parameters.

A program may have them all the same: where no gradient passes them, behind a `stop_gradient`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import jax
import jax.numpy as jnp

from gradscope.tracing.jaxpr.jaxcompat import Equation, bind

#: Primitives whose rule is to refuse, those of a Pallas kernel and of windows reduced by any function in reverse mode.
_ALWAYS: Final = frozenset({"pure_callback", "io_callback", "ffi_call", "pallas_call", "reduce_window"})

#: Primitives whose rule refuses with some parameters: all singular vectors, eigenvectors, a function of elements at
#: places, products at places that may be the same.
_BY_PARAMETERS: Final = frozenset({"eig", "qr", "scatter", "scatter_mul", "svd"})


def refused_operands(equation: Equation) -> range:
    """Returns the positions of the operands that JAX does not differentiate an equation by, though by the others.

    They are the order or the shape of a special function, what a linear function has besides its argument, and the
    initial values of a reduction.
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
        case _:
            return range(0)


def refuses(equation: Equation) -> bool:
    """Returns whether the rule of a primitive refuses to differentiate an equation by any of its operands."""
    name = equation.primitive.name
    return name in _ALWAYS or (name in _BY_PARAMETERS and _is_not_implemented(equation))


# An analysis asks for each equation several times, and an attempt takes a millisecond.
@lru_cache(maxsize=256)
def _is_not_implemented(equation: Equation) -> bool:
    operands = [jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype) for atom in equation.invars]
    inexact = [at for at, each in enumerate(operands) if jnp.issubdtype(each.dtype, jnp.inexact)]

    def derivative(*values: Any) -> Any:
        def run(*moved: Any) -> list[Any]:
            by_position = dict(zip(inexact, moved, strict=True))
            return bind(equation, [by_position.get(at, value) for at, value in enumerate(values)])

        moved = [values[at] for at in inexact]
        return jax.jvp(run, moved, moved)

    try:
        jax.eval_shape(derivative, *operands)
    except NotImplementedError:
        return True
    return False
