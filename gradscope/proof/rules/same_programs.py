"""`program_key` is equal for two jaxprs of one process that compute the same by the same operations.

Names, source lines and scopes do not count. Two traces of one function have the same key, and so have those of two
functions of the same code, unless they close over different values.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradscope.tracing.jaxpr.jaxcompat import CUSTOM_RULES, Equation, Jaxpr, is_literal, opened, sub_jaxprs


def program_key(jaxpr: Jaxpr, constants: Sequence[Any]) -> Hashable:
    """Returns a value that is equal for programs that compute the same by the same operations.

    Args:
        jaxpr: The open jaxpr.
        constants: The values of its constant variables.
    """
    numbers: dict[Any, int] = {}

    def keys(atoms: Iterable[Any]) -> Hashable:
        return tuple(
            (_value_key(atom.val) if is_literal(atom) else numbers.setdefault(atom, len(numbers)), str(atom.aval))
            for atom in atoms
        )

    head = keys(jaxpr.constvars), tuple(map(_value_key, constants)), keys(jaxpr.invars)
    body = tuple(
        (equation.primitive.name, _parameters_key(equation), keys(equation.invars), keys(equation.outvars))
        for equation in jaxpr.eqns
    )
    return head, body, keys(jaxpr.outvars)


def _parameters_key(equation: Equation) -> Hashable:
    if equation.primitive.name in CUSTOM_RULES:  # its other parameters are functions, which JAX makes for each call
        return tuple(program_key(inside.jaxpr, inside.constants) for inside in sub_jaxprs(equation))
    return _value_key(equation.params)


def _value_key(value: Any) -> Hashable:
    if hasattr(value, "eqns"):
        return program_key(*opened(value))
    if isinstance(value, Mapping):
        return tuple((str(name), _value_key(each)) for name, each in value.items())  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, tuple | list):
        return tuple(map(_value_key, value))  # pyright: ignore[reportUnknownArgumentType]
    is_array = hasattr(value, "__array__") and not isinstance(value, type)
    if is_array or isinstance(value, jax.Array | float | complex):
        return _array_key(value)
    return value if _is_hashable(value) else repr(value)


def _array_key(value: Any) -> Hashable:
    """Returns the type, the shape and a digest of the bits: by its bits, NaN is equal to itself."""
    kind = str(jnp.result_type(value))
    if jnp.issubdtype(jnp.result_type(value), jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    array = np.asarray(value)
    return kind, array.shape, hashlib.sha256(array.tobytes()).digest()


def _is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True
