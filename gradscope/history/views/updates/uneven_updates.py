"""States that the updates of a run hardly move some of its layers, and move others, as where gradients vanish.

A layer is moved as much as the one of its parameters that is moved most: gradients that vanish do so for all of them.
The gradient of one alone may be nothing but rounding, as that of a bias which a normalisation or a softmax cancels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from gradscope import naming
from gradscope.history.history_reader import History
from gradscope.history.views.family_series import series_of

#: The fewest recorded steps that say so.
_FEWEST: Final = 3
#: How many times as much the layers are moved that are moved most. Layers of a network that learns are within a
#: factor of some hundreds of each other, with every usual optimizer.
_TIMES: Final = 1e4


@dataclass(frozen=True, slots=True, kw_only=True)
class UnevenUpdates:
    """`UnevenUpdates` are the updates of the parameters that did not begin at zero.

    Attributes:
        least: The parameter that is moved most of the layer that is moved least, of those that a gradient reaches.
        least_share: The norm of its update over its own, in the median of the recorded steps.
        most: The parameter that is moved most.
        most_share: The same of it.
    """

    least: str
    least_share: float
    most: str
    most_share: float


def uneven_updates(history: History) -> UnevenUpdates | None:
    """Returns how unevenly a run moves its parameters; None where it does not, or where that is not known.

    Args:
        history: The run's history.

    Raises:
        DumpError: The history is damaged.
    """
    norms = history.columns(("l2",))
    params, updates = (series_of(history, norms, family, "l2") for family in (naming.PARAM, naming.UPDATE))
    shares = {
        name: float(np.median(updates[name] / param))
        for name, param in params.items()
        if name in updates and updates[name].shape == param.shape and len(param) >= _FEWEST and (param > 0).all()
    }
    moved = _most_of_layers({name: share for name, share in shares.items() if 0 < share < np.inf})
    if len(moved) < 2:
        return None
    least, most = min(moved, key=lambda name: moved[name]), max(moved, key=lambda name: moved[name])
    if moved[most] < _TIMES * moved[least]:
        return None
    return UnevenUpdates(least=least, least_share=moved[least], most=most, most_share=moved[most])


def _most_of_layers(moved: Mapping[str, float]) -> dict[str, float]:
    """Returns, of each layer's parameters, the one that is moved most."""
    layers: dict[str, str] = {}
    for name, share in moved.items():
        layer = name.rpartition("/")[0] or name  # of a function of plain weights, each is its own
        if layer not in layers or share > moved[layers[layer]]:
            layers[layer] = name
    return {name: moved[name] for name in layers.values()}
