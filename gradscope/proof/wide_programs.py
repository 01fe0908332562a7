"""A `Widening` makes functions compute in float64 what they compute in narrower types.

The digits of bfloat16 are too few for finite differences: a step that changes the loss by more than its rounding is too
large for a derivative. So the function is traced in its own types, and its jaxpr is evaluated with float64 in the place
of each. It stays the same program, with the same operations, constants, branches and derivative rules; a rule is traced
in its own types, too. An operation that cannot be widened, such as one on the bits of a number, runs as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jax.interpreters import ad

from gradscope.proof.solvers.evaluation import (
    evaluated_inside,
    evaluated_while,
    evaluated_without_rule,
    has_rule,
    is_while,
)
from gradscope.tracing.dataflow.reachability import is_inexact
from gradscope.tracing.jaxpr.jaxcompat import (
    Equation,
    Jaxpr,
    bind,
    is_literal,
    sub_jaxprs,
    trace,
    traced_as,
)

#: Makes the context in which functions are traced.
Context: TypeAlias = Callable[[], AbstractContextManager[Any]]

#: Parameters that are the type of what an operation returns.
_TYPES: Final = ("new_dtype", "preferred_element_type", "dtype")
#: An operation on the bits of a number, which are those of its type.
_ON_BITS: Final = "bitcast_convert_type"
#: An operation that rounds to a narrower type, and does nothing in a wide one.
_ROUNDS: Final = "reduce_precision"
#: Operations that have a jaxpr of their types, by functions that make it anew.
_SCATTERS: Final[Mapping[str, Callable[..., Any]]] = MappingProxyType(
    {
        "scatter": jax.lax.scatter,
        "scatter-add": jax.lax.scatter_add,
        "scatter-mul": jax.lax.scatter_mul,
        "scatter-min": jax.lax.scatter_min,
        "scatter-max": jax.lax.scatter_max,
    }
)
#: The parameters of a scatter that its function takes.
_OF_SCATTERS: Final = ("dimension_numbers", "indices_are_sorted", "unique_indices", "mode")
#: What `stop_gradient` does, which leaves whole numbers as they are.
_STOP: Final = jax.make_jaxpr(jax.lax.stop_gradient)(1.0).eqns[0].primitive
#: Operations that fill an array with a number.
_FILLS: Final = frozenset({"broadcast_in_dim", "convert_element_type"})
#: What JAX raises where operands of an operation are not of the types that it needs.
_NO_SUCH_TYPE: Final = (TypeError, ValueError, NotImplementedError)


#: What a rule's constants may add to its error, as a multiple of the precision of the type that it states them in: none
#: is stated in a type that is narrower than bfloat16, and the errors of many do not all add up.
_OF_CONSTANTS: Final = 2.0
_COARSEST_CONSTANTS: Final = float(jnp.finfo(jnp.bfloat16).eps)
_MOST_OF_CONSTANTS: Final = 0.05


def error_of_constants(epsilon: float, calls: int = 1) -> float:
    """Returns the relative error of a gradient by the rounded constants of the rules that it passes.

    Args:
        epsilon: The relative precision of the type in which the rules state them.
        calls: The number of calls of rules.
    """
    return min(_MOST_OF_CONSTANTS, _OF_CONSTANTS * min(epsilon, _COARSEST_CONSTANTS) * calls)


@dataclass(frozen=True, slots=True, kw_only=True)
class Widening:
    """A `Widening` makes functions compute in float64.

    Attributes:
        context: The context in which functions, and the derivative rules inside them, are traced.
        always: Whether it is for every function, and not only for those with fewer digits than float32.
    """

    context: Context = nullcontext
    always: bool = False

    def counts_for(self, epsilon: float) -> bool:
        """Returns whether a function is to compute in float64 that has a relative precision."""
        return epsilon > float(np.finfo(np.float64 if self.always else np.float32).eps)

    def between_wide_types(self, function: Callable[[list[Any]], Any], like: Sequence[Any]) -> Callable[..., Any]:
        """Returns a function of arrays in float64, of one of arrays with the types of others."""
        types = [each.dtype for each in like]
        return self(lambda arrays: function([as_type(each, own) for each, own in zip(arrays, types, strict=True)]))

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a function that computes in float64 what another one computes in types of its own.

        Args:
            function: A function of pytrees of arrays.

        Returns:
            A function that can be differentiated, where JAX has 64-bit types.
        """

        def run(*arguments: Any) -> Any:
            with self.context():
                jaxpr, constants, shape = trace(function, *arguments)
            made = _Evaluation(self.context).of(jaxpr, constants, jax.tree_util.tree_leaves(arguments))
            return jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(shape), made)

        return run


class _Evaluation:
    """An `_Evaluation` evaluates jaxprs in float64 and complex128.

    Args:
        context: The context in which derivative rules are traced.
    """

    def __init__(self, context: Context) -> None:
        self._context = context

    def of(self, jaxpr: Jaxpr, constants: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
        """Returns the outputs of a jaxpr."""
        values = map(_wide, (*constants, *arguments))
        known = dict(zip((*jaxpr.constvars, *jaxpr.invars), values, strict=True))

        def value(atom: Any) -> Any:
            return _wide(np.asarray(atom.val, atom.aval.dtype)) if is_literal(atom) else known[atom]

        for equation in jaxpr.eqns:
            made = self._through(equation, [value(atom) for atom in equation.invars])
            known.update(zip(equation.outvars, made, strict=True))
        return [value(atom) for atom in jaxpr.outvars]

    def _through(self, equation: Equation, values: list[Any]) -> list[Any]:
        if has_rule(equation):
            return self._with_rule(equation, values, partial(evaluated_without_rule, evaluate=self.of))
        if _may_refuse_zeros(equation):
            return self._with_rule(equation, values, _operation)
        if is_while(equation):
            return evaluated_while(equation, values, self.of)
        made = evaluated_inside(equation, values, self.of)
        return _operation(equation, values) if made is None else made

    def _with_rule(
        self, equation: Equation, values: list[Any], evaluated: Callable[[Equation, list[Any]], list[Any]]
    ) -> list[Any]:
        """Returns the outputs of a function with a derivative rule, which is the one that JAX makes of the equation."""

        @jax.custom_vjp
        def call(*values: Any) -> list[Any]:
            return evaluated(equation, list(values))

        def forward(*primals: Any) -> tuple[list[Any], Any]:
            moving = [each.value if each.perturbed else None for each in primals]
            still = [None if each.perturbed else each.value for each in primals]
            return call(*(each.value for each in primals)), (moving, still)

        def backward(kept: Any, cotangents: Sequence[Any]) -> tuple[Any, ...]:
            gradients = iter(self._pulled_back(equation, kept, cotangents))
            return tuple(
                next(gradients) if each is not None and is_inexact(atom) else None
                for each, atom in zip(kept[0], equation.invars, strict=True)
            )

        call.defvjp(forward, backward, symbolic_zeros=True)
        # Whole numbers have derivatives of zero, which an operation that reads them need not know how to take.
        atoms = zip(call(*values), equation.outvars, strict=True)
        return [made if is_inexact(variable) else _STOP.bind(made) for made, variable in atoms]

    def _pulled_back(
        self, equation: Equation, kept: tuple[Sequence[Any], Sequence[Any]], cotangents: Sequence[Any]
    ) -> list[Any]:
        """Returns the gradients that an equation's rule makes for its operands that move; None where it is zero.

        What nothing comes back to may refuse every gradient, zeros, too, as a library refuses that of a solver's state.
        So zeros that JAX only writes down, for what a rule or its caller leaves out, arrive nowhere.
        """
        moving, still = kept
        atoms = list(zip(equation.invars, moving, still, strict=True))
        chosen = [at for at, (atom, value, _) in enumerate(atoms) if value is not None and is_inexact(atom)]
        own = [_as_own(other if value is None else value, atom) for atom, value, other in atoms]
        arriving = [at for at, each in enumerate(cotangents) if not isinstance(each, SymbolicZero)]
        outputs = [at for at in arriving if is_inexact(equation.outvars[at])]
        weights = [_as_own(cotangents[at], equation.outvars[at]) for at in outputs]
        if not outputs:
            return [None] * len(chosen)

        def pulled_back(operands: list[Any], weights: list[Any]) -> list[Any]:
            def run(moved: list[Any]) -> list[Any]:
                values = dict(enumerate(operands)) | dict(zip(chosen, moved, strict=True))
                made = bind(equation, [values[at] for at in range(len(operands))])
                return [made[at] for at in outputs]

            return jax.vjp(run, [operands[at] for at in chosen])[1](weights)[0]

        with self._context():
            jaxpr, constants, _ = trace(pulled_back, own, weights)
        wide = [other if value is None else value for _, value, other in atoms]
        made = self.of(jaxpr, constants, [*wide, *(cotangents[at] for at in outputs)])
        return [None if zero else gradient for gradient, zero in zip(made, _zeros(jaxpr), strict=True)]


def _may_refuse_zeros(equation: Equation) -> bool:
    """Returns whether the gradient of an operation is made by a library, which may refuse what arrives at it.

    JAX leaves out of the program of a gradient what makes none, and so asks no such operation. Operations between
    functions that have a rule here are in it, and are asked with zeros.
    """
    transpose = ad.primitive_transposes.get(equation.primitive)
    while isinstance(transpose, partial):
        transpose = transpose.func
    return transpose is not None and not str(transpose.__module__).startswith("jax.")


def _operation(equation: Equation, values: list[Any]) -> list[Any]:
    """Returns the outputs of one operation in float64, or in its own type where it has none."""
    if equation.primitive.name == _ROUNDS:
        return values
    expected = [_wide_type(variable.aval.dtype) for variable in equation.outvars]
    if any(map(is_inexact, (*equation.invars, *equation.outvars))) and not equation.effects:
        try:
            made = _in_wide_types(equation, values)
        except _NO_SUCH_TYPE:
            made = None
        if made is not None and [each.dtype for each in made] == expected:
            return made
    own = [_as_own(value, atom) for value, atom in zip(values, equation.invars, strict=True)]
    return list(map(_wide, bind(equation, own)))


def _in_wide_types(equation: Equation, values: Sequence[Any]) -> list[Any] | None:
    """Returns the outputs of an operation as of float64; None where its types are stated otherwise."""
    name, params = equation.primitive.name, equation.params
    if name in _SCATTERS:
        with traced_as(equation):
            return [_SCATTERS[name](*values, **{each: params[each] for each in _OF_SCATTERS})]
    if name == _ON_BITS or sub_jaxprs(equation):
        return None
    types = {each: _wide_type(params[each]) for each in _TYPES if params.get(each) is not None}
    # A product may state by which algorithm it is computed, and so that it is of operands in bfloat16.
    exact = {"precision": None} if "precision" in params else {}
    return bind(equation, values, {**params, **types, **exact})


def _zeros(jaxpr: Jaxpr) -> list[bool]:
    """Returns which outputs of a jaxpr are zeros that it states."""
    stated: set[Any] = set()

    def is_zero(atom: Any) -> bool:
        return not np.any(np.asarray(atom.val)) if is_literal(atom) else atom in stated

    for equation in jaxpr.eqns:
        if equation.primitive.name in _FILLS and is_zero(equation.invars[0]):
            stated.update(equation.outvars)
    return list(map(is_zero, jaxpr.outvars))


def _as_own(value: Any, atom: Any) -> Any:
    """Returns a value in the type that its program has it in."""
    return as_type(value, atom.aval.dtype) if is_inexact(atom) else value


def _wide(value: Any) -> Any:
    return as_type(value, _wide_type(value.dtype))


def as_type(value: Any, dtype: Any) -> Any:
    """Returns a value in a type, which is itself where it has that type."""
    return value if dtype == value.dtype else jax.lax.convert_element_type(value, dtype)


def _wide_type(dtype: Any) -> Any:
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return np.dtype(np.complex128)
    return np.dtype(np.float64) if jnp.issubdtype(dtype, jnp.floating) else dtype
