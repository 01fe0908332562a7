"""`GradientTraces` finds what gradients show of a value that leaves no trace among the values behind it.

`accounts_for_losses` finds whether a value that only the loss reads makes the losses differ, `hides_from_losses`
whether it could differ without a trace there.

A branch that ends with a factor of zero, as many do before they are trained, hides whatever differs inside of it: what
the branch is added to agrees. The gradient of that factor is made of the values of the branch all the same. Where it
differs, and nothing else that it is made of does, those are wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np

from gradscope.comparison.diagnosis.refuting.errors_behind import relative_error
from gradscope.comparison.diagnosis.refuting.float_tensors import FloatTensors
from gradscope.comparison.diagnosis.refuting.lost_parameters import owner_sources
from gradscope.comparison.judging.rows import ComparisonRow
from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.comparison.precision import machine_epsilon
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.layer_graph import NearestKeys, inverted
from gradscope.naming import ACTIVATION_GRAD, is_gradient, key_of, split_key

#: How near a difference of losses is to what makes it, and how many times its rounding it is at least.
_NEAR: Final = 1e-3
_CLEAR: Final = 100

#: How many times its tolerance an error is that another form of a step makes, and that other steps seldom do.
_SMALL: Final = 10


def accounts_for_losses(dumps: Dumps, match: Match, rows: Mapping[str, ComparisonRow]) -> bool:
    """Returns whether the losses differ by the difference of a value times its gradient, which agrees.

    Args:
        dumps: The dumps.
        match: The pair of values.
        rows: The rows of pairs, by the reference's keys.
    """
    row = rows.get(key_of(ACTIVATION_GRAD, split_key(match.ref)[1]))
    found = None if row is None or row.status != "same" else _of_losses(dumps, match)
    return found is not None and found.is_clear and abs(found.made - found.apart) <= _NEAR * abs(found.apart)


def hides_from_losses(dumps: Dumps, match: Match, rows: Mapping[str, ComparisonRow]) -> bool:
    """Returns whether a small difference of a value changes the loss by less than losses show.

    Args:
        dumps: The dumps.
        match: The pair of values.
        rows: The rows of pairs, by the reference's keys.
    """
    row = rows[match.ref]
    if row.tolerance is None or relative_error(row) > _SMALL * row.tolerance:
        return False
    found = _of_losses(dumps, match)
    return found is not None and not found.is_clear and abs(found.made) <= found.shown


class _OfLosses(NamedTuple):
    """_OfLosses has how far two losses are apart, what a difference of values makes of it, and the least they show."""

    apart: float
    made: float
    shown: float

    @property
    def is_clear(self) -> bool:
        """Whether the losses differ by more than rounding."""
        return abs(self.apart) > self.shown


def _of_losses(dumps: Dumps, match: Match) -> _OfLosses | None:
    """Returns what a difference of values times its gradient makes of the loss; None where that is not known."""
    one, other, tensors = dumps.ref.manifest.loss, dumps.cand.manifest.loss, FloatTensors(dumps.ref)
    value = tensors.tensor(match.ref)
    gradient = tensors.tensor(key_of(ACTIVATION_GRAD, split_key(match.ref)[1]))
    if one is None or other is None or value is None or gradient is None:
        return None
    if not all(map(dumps.cand.has_tensor, match.recipe.keys)):
        return None
    found = match.recipe.array(dumps.cand)
    if found.shape != value.shape or gradient.shape != value.shape:
        return None
    made = float((gradient * (found.astype(np.float64) - value)).sum())
    return _OfLosses(other - one, made, _CLEAR * float(machine_epsilon("float32")) * abs(one))


class GradientTraces:
    """GradientTraces finds the errors of the gradients that are computed next from a value of one program.

    Args:
        source: The dump.
        rows: The rows of what is compared, by key.
    """

    def __init__(self, source: DumpSource, rows: Mapping[str, ComparisonRow]) -> None:
        sources = owner_sources(source)
        self._sources = NearestKeys(sources, rows)
        self._readers = NearestKeys(inverted(sources), rows)
        self._rows = rows
        gradients = {key for key, row in rows.items() if is_gradient(row.family)}
        zero = {key for key in gradients if source.entry(key).stats.get("rms") == 0 and rows[key].status == "same"}
        self._telling = gradients - zero

    def largest(self, key: str) -> float | None:
        """Returns the largest error that begins in a gradient next behind a value; None where no gradient shows any.

        A program without gradients has none that does, and those next behind may all be zero, whatever the value is.
        """
        behind = [each for each in self._readers.behind(key) if is_gradient(self._rows[each].family)]
        telling = self._telling.intersection(behind)
        if not telling and (behind or not self._telling):
            return None
        return max((relative_error(self._rows[each]) for each in telling if self._begins_in(each)), default=0.0)

    def _begins_in(self, key: str) -> bool:
        """Returns whether a gradient differs, and nothing that is compared of what it is computed from does."""
        before = self._sources.behind(key)
        return self._rows[key].status == "different" and all(self._rows[each].status == "same" for each in before)
