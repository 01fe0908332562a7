"""Reads the learning rate that an optimizer's state states, as that of `optax.inject_hyperparams` does."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import optax
from jax.tree_util import all_leaves


def stated_learning_rate(state: Any) -> Any:
    """Returns the learning rate of a step.

    Args:
        state: The optimizer's state after the step: a schedule puts there the rate that the step took.

    Returns:
        A scalar; None where the state has none, or several.
    """
    found = optax.tree.get_all_with_path(state, "learning_rate")
    # Beside the rate that a schedule made is the state of the schedule, by the same name.
    rates = [value for _, value in found if all_leaves([value]) and jnp.ndim(value) == 0]
    return rates[0] if len(rates) == 1 else None
