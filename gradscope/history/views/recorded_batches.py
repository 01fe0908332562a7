"""Tells of the batches of a run whether all that it recorded are one, and whether the examples come sorted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Final

import numpy as np

from gradscope import naming
from gradscope.history.history_reader import History
from gradscope.history.history_rows import TensorRow

#: The fewest recorded steps that say that batches are one, and that examples are sorted.
_FEWEST: Final = 3
_FEWEST_SORTED: Final = 5
#: The fewest values of an input that are one by more than chance: with two classes, in one of a hundred batches.
#: Smaller ones are the number of a step, a weight, or a random key, which differ where the examples do not.
_VALUES: Final = 8
#: Statistics of an input: where all of them are the same, the input is.
_STATISTICS: Final = ("l2", "mean", "std", "amax", "zeros")
#: The mean of equal numbers is off by this share at most, as float32 adds them up.
_ROUNDING: Final = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class SortedInput:
    """A `SortedInput` is an input of whole numbers that has one value in each batch, which rises or falls in time.

    Attributes:
        name: Its name.
        steps: How many steps are recorded.
        first: Its value in the first recorded batch.
        last: The last value that differs from that.
    """

    name: str
    steps: int
    first: float
    last: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedBatches:
    """`RecordedBatches` is what is unusual in the batches that a run recorded.

    Attributes:
        same: Whether they are one, by all statistics of its inputs.
        sorted: The inputs by which the examples are sorted.
    """

    same: bool = False
    sorted: tuple[SortedInput, ...] = ()


def recorded_batches(history: History) -> RecordedBatches:
    """Returns what is unusual in the recorded batches of a run.

    Args:
        history: The run's history.

    Raises:
        DumpError: The history is damaged.
    """
    series = history.columns(_STATISTICS)
    inputs = [
        (tensor, series[number])
        for number, tensor in history.tensors.items()
        if tensor.family == naming.INPUT
        and number in series
        and len(series[number]["step"]) >= _FEWEST
        and prod(tensor.shape or ()) >= _VALUES
    ]
    # An input that is a constant, as a mask of ones, tells no batch from another.
    varied = [tensor.name for tensor, each in inputs if not _has_one_value(each).all()]
    same = bool(varied) and all((each[column] == each[column][0]).all() for _, each in inputs for column in _STATISTICS)
    found = (_sorted(tensor, each) for tensor, each in inputs if any(other != tensor.name for other in varied))
    return RecordedBatches(same=same, sorted=tuple(each for each in found if each is not None))


def _has_one_value(series: Mapping[str, np.ndarray]) -> np.ndarray:
    return np.abs(series["std"]) <= _ROUNDING * series["amax"]


def _sorted(tensor: TensorRow, series: Mapping[str, np.ndarray]) -> SortedInput | None:
    is_whole = tensor.dtype is not None and tensor.dtype.startswith(("int", "uint", "bool"))
    if not is_whole or len(series["step"]) < _FEWEST_SORTED or not _has_one_value(series).all():
        return None
    values = np.round(series["mean"])
    if not _is_ordered(values):
        return None
    others = values[values != values[0]]
    # The number of the step, or one that grows with it, is the same for all examples.
    counts = np.ptp(np.diff(values) / np.diff(series["step"])) == 0 and len(np.unique(values)) == len(values)
    if not others.size or counts:
        return None
    return SortedInput(name=tensor.name, steps=len(values), first=float(values[0]), last=float(others[-1]))


def _is_ordered(values: np.ndarray) -> bool:
    """Returns whether values rise, or fall, and begin anew: those of groups, as of one length, come in turns."""
    starts = np.flatnonzero((values[1:] == values[0]) & (values[:-1] != values[0])) + 1
    if len(starts) and len(np.unique(values)) < 3:
        return False  # two values in turns do that in any order
    changes = [np.diff(each) for each in np.split(values, starts)]
    return any(all((sign * each >= 0).all() for each in changes) for sign in (1, -1))
