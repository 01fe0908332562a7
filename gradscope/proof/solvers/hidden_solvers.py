"""`hide_solvers` tells that some frames run an iterative solver where nothing makes it run longer.

Libraries have primitives of their own, which keep what they run as a function and no jaxpr, and differentiate it by a
rule, as Equinox' do that lineax solves linear systems by. What is inside is seen where JAX lowers it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final

import jax

from gradscope.errors import ModelError
from gradscope.proof.solvers.evaluation import is_while
from gradscope.tracing.jaxpr.frames import Frame
from gradscope.tracing.jaxpr.jaxcompat import Equation, Jaxpr, opened, sub_jaxprs
from gradscope.tracing.user_frames import user_code

#: The package whose primitives keep all that they run as jaxprs.
_JAX: Final = "jax"


def hide_solvers(frames: Iterable[Frame]) -> bool:
    """Returns whether an equation in some frames repeats something until a condition holds, out of sight.

    Args:
        frames: The frames.
    """
    return any(_hides_solver(equation) for frame in frames for equation in frame.jaxpr.eqns)


def _hides_solver(equation: Equation) -> bool:
    run = getattr(equation.primitive, "impl", None)
    function = run.func if isinstance(run, partial) else run
    if run is None or getattr(function, "__module__", _JAX).partition(".")[0] == _JAX:
        return False
    shapes = [jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype) for atom in equation.invars]
    try:
        with user_code(f"the function of {equation.primitive.name}"):
            inside, _ = opened(jax.make_jaxpr(partial(run, **equation.params))(*shapes))
    except ModelError:  # it runs in Python, on the numbers
        return False
    return any(is_while(each) or _hides_solver(each) for each in _equations(inside))


def _equations(jaxpr: Jaxpr) -> Iterator[Equation]:
    for equation in jaxpr.eqns:
        yield equation
        for sub in sub_jaxprs(equation):
            yield from _equations(sub.jaxpr)
