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

#: The fewest recorded steps that say that batches are one, and that examples are sorted; how alike the changes from one
#: step to the next are in several passes through these, of one where they are equal. Of batches of two groups in any
#: order (2026-11, drawn 20,000 times) one run in 800 looks so at the fewest steps, of three and more one in 8,000.
_FEWEST: Final = 3
_FEWEST_SORTED: Final = 15
_ALIKE: Final = 0.9
#: The chance of so many steps to the next larger value, of all that are to another one, in any order: of a sequence of
#: groups in any order, as many are to the next as back again.
_CHANCE: Final = 1e-3
#: The standard deviation of a batch of two neighbours; of more, its mean is none of their values.
_OF_NEIGHBOURS: Final = 0.5
#: The share of the variance of sorted examples that is that of the means of batches. Of ten shuffled ones it is 0.1.
_BETWEEN: Final = 0.9
#: The fewest values of an input that are one by more than chance: with two classes, in one of a hundred batches.
#: Smaller ones are the number of a step, a weight, or a random key, which differ where the examples do not.
_VALUES: Final = 8
#: Statistics of an input: where all of them are the same, the input is.
_STATISTICS: Final = ("l2", "mean", "std", "amax", "zeros")
#: The mean of equal numbers is off by this share at most, as float32 adds them up.
_ROUNDING: Final = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class SortedInput:
    """A `SortedInput` is an input of whole numbers that hardly varies within a batch, and does so in order of batches.

    Attributes:
        name: Its name.
        steps: How many steps are recorded.
        least: The least of its means in the recorded batches, rounded.
        most: The largest of them.
    """

    name: str
    steps: int
    least: float
    most: float


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
    tells = any(tensor.name in varied and not _has_one_set(tensor, each) for tensor, each in inputs)
    same = tells and all((each[column] == each[column][0]).all() for _, each in inputs for column in _STATISTICS)
    found = (_sorted(tensor, each) for tensor, each in inputs if any(other != tensor.name for other in varied))
    return RecordedBatches(same=same, sorted=tuple(each for each in found if each is not None))


def _has_one_value(series: Mapping[str, np.ndarray]) -> np.ndarray:
    return series["std"] <= _ROUNDING * series["amax"]


def _has_one_set(tensor: TensorRow, series: Mapping[str, np.ndarray]) -> bool:
    """Returns whether an input has statistics that those of every other batch are, too, whose order alone differs.

    So have codes of one element that is hot, or of as many, and permutations of the whole numbers below one.
    """
    norm, mean, deviation, most, zeros = (float(series[column][0]) for column in _STATISTICS)
    shape = tensor.shape or ()
    size = prod(shape)
    hot = round(size - zeros)
    is_code = abs(norm**2 - hot * most**2) <= _ROUNDING * norm**2
    if is_code and any(length > 1 and hot % (size // length) == 0 for length in shape[1:]):
        return True
    is_uniform = abs(mean - most / 2) <= _ROUNDING * most and zeros * (most + 1) == size
    return is_uniform and abs(deviation**2 - ((most + 1) ** 2 - 1) / 12) <= _ROUNDING * most**2


def _sorted(tensor: TensorRow, series: Mapping[str, np.ndarray]) -> SortedInput | None:
    is_whole = tensor.dtype is not None and tensor.dtype.startswith(("int", "uint", "bool"))
    steps, means = series["step"], series["mean"]
    if not is_whole or len(steps) < _FEWEST_SORTED:
        return None
    between = float(np.var(means))
    if not between > _BETWEEN * (between + float(np.square(series["std"]).mean())):
        return None
    if not (is_ordered(steps, means) or goes_round(means, series["std"])):
        return None
    least, most = float(np.round(means.min())), float(np.round(means.max()))
    # The number of the step, or one that grows with it, is the same for all examples.
    counts = np.ptp(np.diff(means) / np.diff(steps)) == 0 and len(np.unique(means)) == len(means)
    if least == most or counts:
        return None
    return SortedInput(name=tensor.name, steps=len(steps), least=least, most=most)


def is_ordered(steps: np.ndarray, means: np.ndarray) -> bool:
    """Returns whether means rise, or fall, or go round: those of groups, as of one length, come in any order.

    In each pass through sorted examples, the share of those with a smaller value rises by the same part of all from one
    recorded step to the next, and begins anew.

    Args:
        steps: The recorded steps.
        means: The mean of the input at each.
    """
    changes, apart = np.diff(means), np.diff(steps)
    if (changes >= 0).all() or (changes <= 0).all():
        return True
    ordered = np.sort(means)
    smaller = (ordered.searchsorted(means, "left") + ordered.searchsorted(means, "right")) / (2 * len(means))
    turns = np.exp(2j * np.pi * np.diff(smaller)[apart == np.median(apart)])
    # Two values go round in whatever order they are.
    return len(np.unique(means)) > 2 and float(np.abs(turns.mean())) > _ALIKE


def goes_round(means: np.ndarray, deviations: np.ndarray) -> bool:
    """Returns whether values go round from each to the next larger one, and from the largest to the smallest.

    Args:
        means: The mean of the input at each recorded step.
        deviations: Its standard deviation within the batch.
    """
    values = np.round(means[deviations <= _OF_NEIGHBOURS])
    levels, at = np.unique(values, return_inverse=True)
    turns = np.diff(at) % max(len(levels), 1)
    changes, forward = np.count_nonzero(turns), np.count_nonzero(turns == 1)
    if len(levels) < 3 or 2 * forward <= changes:  # two values go round in whatever order they are
        return False
    # Chernoff's bound on the chance of so many heads, or more, in as many tosses of a coin.
    shares = np.array([forward, changes - forward]) / changes
    powers = np.log(2 * np.where(shares > 0, shares, 1))
    return float(np.exp(-changes * (shares @ powers))) < _CHANCE
