"""`initial` and `updated` call an optimizer with what some of optax take besides; refusals become one message."""

from __future__ import annotations

import inspect
from typing import Any

import jax
import optax

from gradscope.errors import UsageError
from gradscope.training.optimizers.optimizers_by_name import Optimizer


def initial(optimizer: Any, params: Any) -> Any:
    """Returns an optimizer's state before the first update, every part of it an array of its own.

    Args:
        optimizer: An `Optimizer`, or a gradient transformation of optax.
        params: The parameters, a pytree.

    Raises:
        UsageError: It refuses them.
    """
    try:
        state = optimizer.init(params)
    except (AttributeError, TypeError, ValueError) as error:
        raise _refusal(optimizer, error) from error
    # An array that is there twice cannot be donated: `lbfgs` begins with one array of zeros for several parts.
    known = {id(leaf) for leaf in jax.tree_util.tree_leaves(params)}

    def own(leaf: Any) -> Any:
        if isinstance(leaf, jax.Array) and id(leaf) in known:
            return leaf.copy()
        known.add(id(leaf))
        return leaf

    return jax.tree_util.tree_map(own, state)


def updated(optimizer: Any, gradients: Any, state: Any, params: Any, **extra: Any) -> tuple[Any, Any]:
    """Returns the updates of the parameters, and the optimizer's state after them.

    Args:
        optimizer: An `Optimizer`, or a gradient transformation of optax.
        gradients: The gradients as the optimizer is to get them, a pytree.
        state: Its state before.
        params: The parameters, a pytree like that of the gradients.
        extra: Arguments by name, of which it gets those that it takes.

    Raises:
        UsageError: It refuses them.
    """
    update = (optimizer if isinstance(optimizer, Optimizer) else optax.with_extra_args_support(optimizer)).update
    parameters = inspect.signature(update).parameters
    if not any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values()):
        # `contrib.sam` states that it takes any argument, and takes none.
        extra = {name: value for name, value in extra.items() if name in parameters}
    try:
        return update(gradients, state, params, **extra)
    except (AttributeError, TypeError, ValueError) as error:
        raise _refusal(optimizer, error) from error


def _refusal(optimizer: Any, error: Exception) -> UsageError:
    name = optimizer.text if isinstance(optimizer, Optimizer) else "the optimizer"
    return UsageError(
        f"{name} cannot update these parameters: {next(iter(str(error).splitlines()), 'no reason given')}"
    )
