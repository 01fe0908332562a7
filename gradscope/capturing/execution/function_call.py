"""Calls of any function are brought into the form in which losses are traced: `loss(variables, batch)`.

The *variables* are the arguments that are differentiated, and the state of a module beside it; the *batch* is the
arrays among all other arguments, all of them or those of JAX alone. What is not part of it (a bool, an int, a string, a
function) is not traced: the function receives it as the caller passed it, so that `if train:` works.

A single differentiated argument is the variables itself, whose leaves keep their names. Of several, each leaf's name
begins with the name of its argument, `encoder/kernel`, so that no two have the same. The batch is made likewise of the
other arguments that have arrays.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, SupportsIndex, cast

import jax
import numpy as np
from jax.core import Tracer

from gradscope import naming
from gradscope.errors import ModelError, UsageError
from gradscope.frameworks.modules.tree_names import tree_paths
from gradscope.naming.paths import unique_names
from gradscope.naming.wording import counted
from gradscope.tracing.leaves import Leaf, leaves_of, variable_leaves

#: Flax's collection of parameters, which holds several differentiated arguments by their names.
_PARAMS: Final = "params"


def require_untraced(values: Iterable[Any]) -> None:
    """Refuses to run where JAX only traces, because there are no values to keep.

    Args:
        values: The values of the run.

    Raises:
        UsageError: This is inside a transformation.
    """
    if any(isinstance(each, Tracer) for each in values):
        raise UsageError(
            "there are no values to keep inside jit, grad, vmap or scan, nor in what a function that JAX traces, such "
            "as init of a model file, has left in a variable",
            hint="inside of those call gs.value_and_grad, which returns what it observes, or call gs.capture outside; "
            "let loss take from its arguments what init makes",
        )


class Call:
    """A `Call` is one call of a function as a loss of two pytrees of arrays.

    Args:
        function: The function.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        differentiated: The positions of the arguments that are differentiated, counted from the first.
        is_traced: Whether a leaf of any other argument is part of the batch.
        state: The position of the state of the module that alone is differentiated; None without one.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        differentiated: Sequence[int],
        is_traced: Callable[[Any], bool],
        *,
        state: int | None = None,
    ) -> None:
        names = _names(function, len(args), kwargs)
        self._function = function
        self._is_traced = is_traced
        self._args = dict(zip(names, args, strict=True))
        self._kwargs = dict(kwargs)
        self._differentiated = {names[position]: args[position] for position in differentiated}
        self._state = {} if state is None else {names[state]: args[state]}
        others = {**self._args, **self._kwargs}
        of_variables = self._differentiated.keys() | self._state.keys()
        traced = {name: self._arrays(value) for name, value in others.items() if name not in of_variables}
        self._traced = {name: arrays for name, arrays in traced.items() if jax.tree_util.tree_leaves(arrays)}

    @property
    def variables(self) -> Any:
        """The differentiated arguments: the argument itself, or several by name in the collection `params`.

        A module that has its state in an argument of its own is the pair of both.
        """
        if self._state:
            return (*self._differentiated.values(), *self._state.values())
        joined = _joined(self._differentiated)
        return joined if len(self._differentiated) == 1 else {_PARAMS: joined}

    @property
    def batch(self) -> Any:
        """The arrays of the other arguments: of a single argument that has any, or of several by name."""
        return _joined(self._traced)

    def differentiated_in(self, variables: Any) -> list[Any]:
        """Returns the parts of a pytree like `variables` that belong to each differentiated argument."""
        return list(self._by_name(variables).values())

    def loss(self, variables: Any, batch: Any) -> Any:
        """Returns what the function returns when its arrays are those of `variables` and `batch`."""
        arrays = _parted(self._traced, batch)
        others = {**self._args, **self._kwargs}
        values = {
            **others,
            **self._by_name(variables),
            **{name: self._with_arrays(others[name], each) for name, each in arrays.items()},
        }
        return self._function(*(values[name] for name in self._args), **{name: values[name] for name in self._kwargs})

    def _by_name(self, variables: Any) -> dict[str, Any]:
        if self._state:
            return dict(zip((*self._differentiated, *self._state), variables, strict=True))
        several = len(self._differentiated) != 1
        return _parted(self._differentiated, variables[_PARAMS] if several else variables)

    def _arrays(self, value: Any) -> Any:
        """Returns the pytree of a value with None in the place of every leaf that is not traced."""
        if all(map(self._is_traced, jax.tree_util.tree_leaves(value))):
            return value
        return jax.tree_util.tree_map(lambda leaf: leaf if self._is_traced(leaf) else None, value)

    def _with_arrays(self, value: Any, arrays: Any) -> Any:
        """Returns a value with other arrays in the place of its own."""
        leaves, tree = jax.tree_util.tree_flatten(value)
        replaced = iter(jax.tree_util.tree_leaves(arrays))
        return jax.tree_util.tree_unflatten(
            tree, [next(replaced) if self._is_traced(leaf) else leaf for leaf in leaves]
        )


def loss_of(call: Call, *, has_aux: bool) -> Callable[[Any, Any], Any]:
    """Returns a call as the loss of a model, without the auxiliary outputs that JAX cannot trace."""

    def loss(variables: Any, batch: Any) -> Any:
        out = call.loss(variables, batch)
        if not (isinstance(out, tuple | list) and len(out) == 2):
            if has_aux:
                raise ModelError(
                    f"with has_aux=True the function must return a pair (loss, aux), and returned {type(out).__name__}"
                )
            return out
        value, aux = out
        return value, jax.tree_util.tree_map(lambda leaf: leaf if is_traceable(leaf) else None, aux)

    return loss


def indices(argnums: SupportsIndex | Iterable[SupportsIndex]) -> int | tuple[int, ...]:
    """Returns one index or several, whatever their types.

    Raises:
        TypeError: Something is not an index.
    """
    of_several = isinstance(argnums, np.ndarray | jax.Array) and argnums.ndim > 0  # which claims to be one, too
    if isinstance(argnums, SupportsIndex) and not of_several:
        return operator.index(argnums)
    return tuple(operator.index(each) for each in cast("Iterable[SupportsIndex]", argnums))


def positions(argnums: int | tuple[int, ...], count: int) -> tuple[int, ...]:
    """Returns the positions that one index or several mean among `count` arguments, counted from the first.

    Raises:
        TypeError: There are fewer arguments, or one is meant twice.
        ValueError: A negative index is before the first argument, or there is none.
    """
    numbers = (argnums,) if isinstance(argnums, int) else argnums
    if max(numbers) >= count:
        raise TypeError(f"argnums is {argnums}, and the call has {counted(count, 'positional argument')}")
    if min(numbers) < -count:
        raise ValueError(f"argnums is {argnums}, and the call has {counted(count, 'positional argument')}")
    found = tuple(number % count for number in numbers)
    if len(set(found)) < len(found):
        raise TypeError(f"argnums is {argnums}, and means one of {counted(count, 'positional argument')} twice")
    return found


def is_array(leaf: Any) -> bool:
    """Returns whether a leaf is an array of a type that JAX has; NumPy's and Python's scalars are none."""
    return isinstance(leaf, jax.Array | np.ndarray) and is_traceable(leaf)


def is_jax_array(leaf: Any) -> bool:
    """Returns whether a leaf is an array of JAX, traced or not."""
    return isinstance(leaf, jax.Array)


def is_traced(leaf: Any) -> bool:
    """Returns whether a leaf is traced already, by a transformation around the call."""
    return isinstance(leaf, Tracer)


def is_traceable(leaf: Any) -> bool:
    """Returns whether a leaf is of a type that JAX has: an array that is not of strings or objects, or a number."""
    try:
        jax.typeof(leaf)
    except (TypeError, ValueError, OverflowError):  # ValueError: a masked array; OverflowError: an int of more bits
        return False
    return True


def is_array_or_real(leaf: Any) -> bool:
    """Returns whether a leaf is an array, or a floating-point or complex number, which can be differentiated."""
    return is_array(leaf) or isinstance(leaf, float | complex | np.inexact)


class ArgumentLeaf(NamedTuple):
    """An `ArgumentLeaf` is one leaf of a call's arguments: its path, `params/head/kernel`, and what a capture calls it.

    Attributes:
        path: The argument's name and the path in it.
        leaf: The leaf, with the family and the name that it has where the first argument is differentiated.
    """

    path: str
    leaf: Leaf


def argument_leaves(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[ArgumentLeaf]:
    """Returns the leaves of a call's arguments, in the order in which JAX flattens `(args, kwargs)`."""
    names = _names(function, len(args), kwargs)
    named = [*zip(names, args, strict=True), *sorted(kwargs.items())]
    first = names[0] if names else next(iter(_parameters(function)), None)
    inputs = [(name, arg) for name, arg in named if name != first]
    several = sum(any(map(is_array_or_real, jax.tree_util.tree_leaves(arg))) for _, arg in inputs) > 1
    in_batch = unique_names([(name, *path) if several else path for name, arg in inputs for path in tree_paths(arg)])
    of_inputs = iter(in_batch)
    leaves: list[Leaf] = []
    for name, arg in named:
        if name == first:
            leaves += variable_leaves(arg)
        else:
            leaves += (replace(leaf, name=next(of_inputs)) for leaf in leaves_of(arg, naming.INPUT))
    paths = unique_names([(name, *path) for name, arg in named for path in tree_paths(arg)])
    return [ArgumentLeaf(path, replace(leaf, differentiated=False)) for path, leaf in zip(paths, leaves, strict=True)]


def _names(function: Callable[..., Any], count: int, kwargs: Mapping[str, Any]) -> list[str]:
    """Returns the names of a call's positional arguments; of one without a name of its own, the position."""
    fixed = _parameters(function)
    return [fixed[at] if at < len(fixed) and fixed[at] not in kwargs else str(at) for at in range(count)]


def _parameters(function: Callable[..., Any]) -> list[str]:
    """Returns the names of the parameters that a function takes by position."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a built-in function
        return []
    return [each.name for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]


def _joined(parts: Mapping[str, Any]) -> Any:
    """Returns a single part itself, or several by name."""
    return next(iter(parts.values())) if len(parts) == 1 else dict(parts)


def _parted(names: Mapping[str, Any], joined: Any) -> dict[str, Any]:
    """Returns the parts that `_joined` joined, in the order of `names`."""
    return dict.fromkeys(names, joined) if len(names) == 1 else {name: joined[name] for name in names}
