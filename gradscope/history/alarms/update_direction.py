"""The direction of a step's updates is their cosine with the gradients: below zero where they descend."""

from __future__ import annotations

import math
from typing import Final

from gradscope import naming
from gradscope.history.alarms.alarm_rules import Statistics

#: A cosine above which updates climb. Of healthy runs, those that do not descend at a step, as a momentum that is
#: carried past a valley, are of either sign, and at the first step they descend.
CLIMBS: Final = 0.1


def update_direction(stats: Statistics) -> float | None:
    """Returns the cosine between all updates and all gradients of a step; None where it is not known, or one is zero.

    Args:
        stats: The statistics of the tensors, by key; an update has its own cosine.
    """
    product = updates = gradients = 0.0
    for key, update in stats.items():
        family, name = naming.split_key(key)
        gradient = stats.get(naming.key_of(naming.PARAM_GRAD, name), {})
        cosine, one, other = update.get("cosine"), update.get("l2"), gradient.get("l2")
        if family == naming.UPDATE and cosine is not None and one is not None and other is not None:
            product += cosine * one * other
            updates, gradients = math.hypot(updates, one), math.hypot(gradients, other)
    norms = updates * gradients
    return product / norms if norms and math.isfinite(norms) else None
