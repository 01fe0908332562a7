"""Finds the parameters that an optimizer never updates although they have a gradient, while others move."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from gradscope import naming
from gradscope.history.history_reader import History

#: Recorded steps that say so.
_FEWEST: Final = 3


def frozen_parameters(history: History) -> tuple[str, ...]:
    """Returns the names of the parameters that stayed as they were at all recorded steps, though they have a gradient.

    Their update is zero, or, where updates were not recorded, they are the same.

    Args:
        history: The run's history.

    Raises:
        DumpError: The history is damaged.
    """
    series = history.columns(("l2", "mean", "amax"))
    by_key = {tensor.key: series[number] for number, tensor in history.tensors.items() if number in series}
    stays = {name: each for key in by_key for family, name in [naming.split_key(key)]
             if family == naming.PARAM_GRAD and (each := _stays(by_key, name)) is not None}  # fmt: skip
    if all(stays.values()):
        return ()
    return tuple(name for name, each in stays.items() if each)


def _stays(by_key: Mapping[str, Mapping[str, np.ndarray]], name: str) -> bool | None:
    """Returns whether a parameter with a gradient stays as it is; None where that is not known."""
    gradient, update, param = (
        by_key.get(naming.key_of(family, name)) for family in (naming.PARAM_GRAD, naming.UPDATE, naming.PARAM)
    )
    known = param if update is None else update
    if known is None or gradient is None or len(known["step"]) < _FEWEST:
        return None
    if update is not None:
        still = bool((update["l2"] == 0).all())
    else:
        still = all(bool((known[column] == known[column][0]).all()) for column in ("l2", "mean", "amax"))
    return still and bool((gradient["l2"] > 0).all())
