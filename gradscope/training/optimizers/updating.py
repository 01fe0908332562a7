"""An optimizer's `update` gets the arguments beside the gradients that some optimizers of optax take."""

from __future__ import annotations

import inspect
from typing import Any

import optax

from gradscope.errors import UsageError
from gradscope.training.optimizers.optimizers_by_name import Optimizer


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
        name = optimizer.text if isinstance(optimizer, Optimizer) else "the optimizer"
        raise UsageError(f"{name} cannot update these parameters: {str(error).splitlines()[0]}") from error
