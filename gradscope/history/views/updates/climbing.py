"""States whether updates of a run point along the gradients, so that they raise the loss that was differentiated.

That is a fault of a descent, whose rate has the wrong sign, and is meant where a loss is maximised.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from json import loads
from typing import Final, cast

import numpy as np

from gradscope import naming
from gradscope.history.alarms.update_direction import CLIMBS, update_direction
from gradscope.history.database.schema import AFFINE
from gradscope.history.history_reader import History

#: Recorded steps that say so of all updates, and of those of some parameters where the loss falls by the others.
_FEWEST: Final = 3
_FEWEST_WHILE_FALLING: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Climb:
    """A `Climb` is a run whose updates point along its gradients, and whose loss has not fallen.

    Attributes:
        count: The recorded steps, at all of which they do.
        cosine: The median of the cosines between all updates and all gradients.
    """

    count: int
    cosine: float


def climb(history: History, losses: Mapping[str, np.ndarray]) -> Climb | None:
    """Returns how a run climbs; None where it does not, where it is not known, or where its loss fell nevertheless.

    A loss that falls shows that what was recorded as updates is subtracted.

    Args:
        history: The run's history.
        losses: `step` and `loss` of each step whose loss is known.

    Raises:
        DumpError: The history is damaged.
    """
    values = losses["loss"]
    if len(values) < _FEWEST or values[-1] <= values[0]:
        return None
    directions = [each for stats in _by_step(history).values() if (each := update_direction(stats)) is not None]
    if len(directions) < _FEWEST or min(directions) <= CLIMBS:
        return None
    return Climb(count=len(directions), cosine=statistics.median(directions))


def climbing_parameters(history: History, *, falls: bool) -> tuple[str, ...]:
    """Returns the parameters whose updates point along their gradients at all recorded steps, where others' do not.

    That is a wrong sign in a part of an optimizer, or meant where the loss is maximised over them. A parameter in which
    the loss is affine is a dual variable, and none of them.

    Args:
        history: The run's history.
        falls: Whether the loss falls nevertheless.

    Raises:
        DumpError: The history is damaged.
    """
    columns, tensors = history.columns(("cosine",)), history.tensors
    cosines = {
        tensors[number].name: series["cosine"][~np.isnan(series["cosine"])]
        for number, series in columns.items()
        if number in tensors and tensors[number].family == naming.UPDATE
    }
    fewest = _FEWEST_WHILE_FALLING if falls else _FEWEST
    known = {name: each for name, each in cosines.items() if len(each) >= fewest}
    duals = _stated_names(history.facts.get(AFFINE, "[]"))
    climbing = tuple(name for name, each in known.items() if each.min() > CLIMBS and name not in duals)
    return climbing if len(climbing) < len(known) else ()


def _stated_names(text: str) -> frozenset[str]:
    """Returns the names of a list; none of a text that is none, as the fact of anybody's history may be."""
    try:
        found = cast("object", loads(text))
    except (ValueError, RecursionError):
        return frozenset()
    names = cast("list[object]", found) if isinstance(found, list) else []
    return frozenset(each for each in names if isinstance(each, str))


def _by_step(history: History) -> dict[int, dict[str, dict[str, float | int | None]]]:
    """Returns the norms of updates and gradients, and their cosines, by key, of each recorded step."""
    columns, tensors = history.columns(("l2", "cosine")), history.tensors
    by_step: dict[int, dict[str, dict[str, float | int | None]]] = {}
    for number in columns.keys() & tensors.keys():
        if tensors[number].family in (naming.UPDATE, naming.PARAM_GRAD):
            series = columns[number]
            for step, l2, cosine in zip(series["step"], series["l2"], series["cosine"], strict=True):
                known = {"l2": _known(l2), "cosine": _known(cosine)}
                by_step.setdefault(int(step), {})[tensors[number].key] = known
    return by_step


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
