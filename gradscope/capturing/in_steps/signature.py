"""A signature states how a function of the user's own step is differentiated; modules with state keep its changes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import jax
import jax.numpy as jnp

from gradscope.capturing.execution.function_call import positions
from gradscope.errors import UsageError
from gradscope.frameworks.detect import stateful_call
from gradscope.frameworks.modules.adapter import StatefulCall
from gradscope.tracing.leaves import Leaf

#: The collection of parameters among those of a module.
_PARAMS: Final = "params"


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """A `Signature` states how a function is differentiated, in the terms of `jax.value_and_grad`.

    Attributes:
        argnums: The position of the differentiated argument, or those of several.
        has_aux: Whether the function returns a pair of its value and a pytree.
        holomorphic: Whether arguments and value are complex and the function is holomorphic.
        allow_int: Whether integers may be differentiated; their gradients are of dtype float0.
        has_state: Whether the differentiated argument is collections, of which `params` alone is differentiated.
    """

    argnums: int | tuple[int, ...] = 0
    has_aux: bool = False
    holomorphic: bool = False
    allow_int: bool = False
    has_state: bool = False

    def parameters_of(self, tree: Any) -> Any:
        """Returns the parameters' part of a pytree that is like what is differentiated, as its gradients are."""
        return tree[_PARAMS] if self.has_state else tree

    def require_input(self, leaf: Leaf) -> None:
        """Refuses a leaf of a differentiated argument that cannot be differentiated.

        Raises:
            TypeError: It is not of the dtype that is needed.
        """
        if self.holomorphic and not jnp.issubdtype(leaf.dtype, jnp.complexfloating):
            raise TypeError(f"holomorphic=True needs complex arguments, and {leaf.name} is {leaf.dtype}")
        if not self.allow_int and not jnp.issubdtype(leaf.dtype, jnp.inexact):
            raise TypeError(
                f"gradients need real or complex arguments, and {leaf.name} is {leaf.dtype}: pass allow_int=True if "
                "it is to have a gradient of dtype float0"
            )

    def require_value(self, value: Any) -> None:
        """Refuses a value that has no gradient.

        Raises:
            TypeError: It is not a scalar, or not of the dtype that is needed.
        """
        if isinstance(value, tuple | list) and not self.has_aux:
            raise TypeError("the function returns several values: pass has_aux=True if it returns a pair (value, aux)")
        aval = jax.typeof(value)
        if aval.shape != ():
            raise TypeError(f"the function must return a scalar, and what it returns has shape {aval.shape}")
        if self.holomorphic and not jnp.issubdtype(aval.dtype, jnp.complexfloating):
            raise TypeError(f"holomorphic=True needs a function that returns a complex number, not {aval.dtype}")
        if not self.holomorphic and not jnp.issubdtype(aval.dtype, jnp.floating):
            raise TypeError(f"the function must return a real floating-point number, and returns {aval.dtype}")


def of_modules(
    function: Callable[..., Any], signature: Signature, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[StatefulCall, Signature]:
    """Returns a call so that modules with state keep its changes, and how its function is differentiated.

    Args:
        function: The function.
        signature: How it is differentiated.
        args: Its arguments by position.
        kwargs: Those by name.

    Returns:
        The call, that of the function itself where there is no such module, and its signature.

    Raises:
        UsageError: There is such a module, and several arguments are differentiated.
    """
    at = positions(signature.argnums, len(args))
    call = stateful_call(function, args, kwargs, differentiated=at[0], has_aux=signature.has_aux)
    if call is None:
        return StatefulCall(function, args, kwargs, has_state=False, restored=_as_it_is), signature
    if not isinstance(signature.argnums, int):
        raise UsageError(
            "a module of NNX that has running averages or random streams is among several arguments that are "
            "differentiated (argnums)",
            hint="hand over those that are differentiated as one, a tuple of modules",
        )
    return call, replace(signature, has_aux=True, has_state=call.has_state)


def _as_it_is(out: Any) -> Any:
    return out


def plain_value_and_grad(function: Callable[..., Any], signature: Signature) -> Callable[..., tuple[Any, Any]]:
    """Returns `jax.value_and_grad` of a function; of one of collections, without a gradient of its state."""
    differentiated = functools.partial(
        jax.value_and_grad, has_aux=signature.has_aux, holomorphic=signature.holomorphic,
        allow_int=signature.allow_int,
    )  # fmt: skip
    argnums = signature.argnums
    if not signature.has_state or not isinstance(argnums, int):
        return differentiated(function, argnums=argnums)

    @functools.wraps(function, updated=())
    def of_collections(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        collections = args[argnums]

        @functools.wraps(function, updated=())
        def of_params(params: Any, *others: Any, **named: Any) -> Any:
            given = list(others)
            given[argnums] = {**collections, _PARAMS: params}
            return function(*given, **named)

        value, gradients = differentiated(of_params)(collections[_PARAMS], *args, **kwargs)
        return value, {_PARAMS: gradients}

    return of_collections
