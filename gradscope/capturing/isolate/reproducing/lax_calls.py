"""A call writes one equation as a call of `jax.lax`, or of `jax.random`, in Python text.

Most primitives have a function of the same name in `jax.lax` that takes their parameters by name. A table has the few
whose function has another name. The others are bound as primitives, which `jax.lax` exports as `NAME_p`.
"""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any, Final

import jax.numpy as jnp
import numpy as np
from jax import lax

from gradscope.errors import UsageError
from gradscope.tracing.jaxpr.jaxcompat import Equation

#: Primitives whose function in `jax.lax` has another name.
_RENAMED: Final[Mapping[str, str]] = {
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "not": "bitwise_not",
    "add_any": "add",
    "scatter-add": "scatter_add",
    "scatter-mul": "scatter_mul",
    "scatter-min": "scatter_min",
    "scatter-max": "scatter_max",
}

#: Parameters that do not change what a primitive computes.
_IMMATERIAL: Final = frozenset({"weak_type", "update_jaxpr", "update_consts", "accuracy"})

#: Equations that return their operand unchanged.
_IDENTITIES: Final = frozenset({"copy", "copy_p", "name", "sharding_constraint", "stop_gradient"})

#: Equations that allocate an array whose elements are overwritten.
_BLANKS: Final = frozenset({"empty", "empty2"})


def call(equation: Equation, operands: Sequence[str]) -> str:
    """Returns an equation without inner jaxprs as an expression.

    Args:
        equation: The equation.
        operands: Its operands as expressions.

    Returns:
        The expression.

    Raises:
        UsageError: It cannot be written as Python.
    """
    name: str = equation.primitive.name
    if name in _IDENTITIES:
        return operands[0]
    if name in _BLANKS:
        made = equation.outvars[0].aval
        return f"jnp.zeros({literal(made.shape)}, {literal(np.dtype(made.dtype))})"
    special = _SPECIAL.get(name)
    if special is not None:
        return special(operands, equation.params)
    if name == "convert_element_type" and _drops_imaginary(equation):
        operands = [f"lax.real({operands[0]})"]  # the function warns of what the primitive does
    params = {key: value for key, value in equation.params.items() if not _is_immaterial(key, value)}
    own = _RENAMED.get(name, name)
    keywords = _accepted(getattr(lax, own, None), params)
    if keywords is not None:
        return f"lax.{own}({_arguments(operands, keywords)})"
    primitive = f"{own.replace('-', '_')}_p"
    if not hasattr(lax, primitive):
        raise _unwritable(name)
    bound = {key: None if _is_immaterial(key, value) else value for key, value in equation.params.items()}
    return f"lax.{primitive}.bind({_arguments(operands, bound)})"


def literal(value: Any) -> str:
    """Returns a parameter's value as an expression.

    Raises:
        UsageError: It cannot be written as Python.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or (isinstance(value, bool | int | float | str) and not isinstance(value, enum.Enum)):
        return f'float("{value}")' if isinstance(value, float) and not np.isfinite(value) else repr(value)
    if isinstance(value, np.dtype):
        return f"jnp.{'bool_' if value == np.bool_ else value.name}"
    if hasattr(lax, type(value).__name__):
        return _of_lax(value)
    if isinstance(value, tuple | list):
        inside = ", ".join(map(literal, value))
        return f"({inside},)" if len(value) == 1 else f"({inside})"
    if hasattr(lax, f"{getattr(value, 'name', '')}_p"):  # a primitive itself
        return f"lax.{value.name}_p"
    raise _unwritable(f"a parameter of type {type(value).__name__}")


def _of_lax(value: Any) -> str:
    """Returns a member of one of the enumerations of `jax.lax`, or one of its tuples with names, as an expression."""
    name = type(value).__name__
    if isinstance(value, enum.Enum):
        return f"lax.{name}.{value.name}"
    return f"lax.{name}({_arguments((), vars(value) if is_dataclass(value) else value._asdict())})"


def scalar(value: Any, dtype: Any) -> str:
    """Returns a scalar of a dtype as an expression that reproduces it to the bit."""
    number = np.asarray(value, dtype).item()
    known = isinstance(dtype, np.dtype) and dtype.name in ("float32", "float64", "float16", "int32", "int64", "uint32")
    spelt = repr(number) if np.isfinite(number) else f'"{number}"'
    if known:
        return f"np.{dtype.name}({spelt})"
    return f"jnp.asarray({spelt if np.isfinite(number) else f'float({spelt})'}, {literal(np.dtype(dtype))})"


def _drops_imaginary(equation: Equation) -> bool:
    made, read = equation.outvars[0].aval.dtype, equation.invars[0].aval.dtype
    return jnp.issubdtype(read, jnp.complexfloating) and not jnp.issubdtype(made, jnp.complexfloating)


def _is_immaterial(key: str, value: Any) -> bool:
    """Returns whether a parameter does not change the result: one of the table, or a sharding over no devices."""
    mesh = getattr(value, "mesh", None)
    return key in _IMMATERIAL or (mesh is not None and not mesh.axis_names)


def _accepted(function: Any, params: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns the parameters for a function of `jax.lax`; None where it does not accept all of them."""
    if function is None:
        return None
    known = inspect.signature(function).parameters
    passed = {key: value for key, value in params.items() if value is not None}
    return passed if passed.keys() <= known.keys() else None


def _arguments(operands: Sequence[str], keywords: Mapping[str, Any]) -> str:
    return ", ".join((*operands, *(f"{key}={literal(value)}" for key, value in keywords.items())))


def _unwritable(what: str) -> UsageError:
    return UsageError(
        f"{what} cannot be written as a script of jax.lax",
        hint="isolate a smaller layer next to it, or dump only that layer with --fetch and --feed",
    )


def _iota(_operands: Sequence[str], params: Mapping[str, Any]) -> str:
    dtype, shape, axis = (literal(params[name]) for name in ("dtype", "shape", "dimension"))
    return f"lax.broadcasted_iota({dtype}, {shape}, {axis})"


def _dynamic_slice(operands: Sequence[str], params: Mapping[str, Any]) -> str:
    array, *start = operands
    return f"lax.dynamic_slice({array}, ({', '.join(start)},), {literal(params['slice_sizes'])})"


def _dynamic_update_slice(operands: Sequence[str], _params: Mapping[str, Any]) -> str:
    array, update, *start = operands
    return f"lax.dynamic_update_slice({array}, {update}, ({', '.join(start)},))"


def _sort(operands: Sequence[str], params: Mapping[str, Any]) -> str:
    return f"lax.sort(({', '.join(operands)},), {_arguments((), params)})"


def _extremum(function: str) -> Callable[[Sequence[str], Mapping[str, Any]], str]:
    def written(operands: Sequence[str], params: Mapping[str, Any]) -> str:
        (axis,) = params["axes"]
        return f"lax.{function}({operands[0]}, {axis}, {literal(jnp.dtype(params['index_dtype']))})"

    return written


def _seed(operands: Sequence[str], params: Mapping[str, Any]) -> str:
    return f"jax.random.key({operands[0]}, impl={params['impl'].name!r})"


_SPECIAL: Final[Mapping[str, Callable[[Sequence[str], Mapping[str, Any]], str]]] = {
    "iota": _iota,
    "sort": _sort,
    "random_bits": lambda keys, params: (
        f"jax.random.bits({keys[0]}, {literal(params['shape'])}, jnp.uint{params['bit_width']})"
    ),
    "random_seed": _seed,
    "random_clone": lambda keys, _: keys[0],
    "random_gamma": lambda operands, params: (
        f"jax.random.{'loggamma' if params['log_space'] else 'gamma'}({', '.join(operands)}, dtype={operands[1]}.dtype)"
    ),
    "random_split": lambda keys, params: f"jax.random.split({keys[0]}, {literal(params['shape'])})",
    "random_fold_in": lambda operands, _: f"jax.random.fold_in({', '.join(operands)})",
    "random_unwrap": lambda keys, _: f"jax.random.key_data({keys[0]})",
    "random_wrap": lambda data, params: f"jax.random.wrap_key_data({data[0]}, impl={params['impl'].name!r})",
    "device_put": lambda operands, _: f"({', '.join(operands)},)",
    "optimization_barrier": lambda operands, _: f"({', '.join(operands)},)",
    "concatenate": lambda operands, params: f"lax.concatenate(({', '.join(operands)},), {params['dimension']})",
    "stack": lambda operands, params: f"lax.stack(({', '.join(operands)},), {params['axis']})",
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "argmax": _extremum("argmax"),
    "argmin": _extremum("argmin"),
}
