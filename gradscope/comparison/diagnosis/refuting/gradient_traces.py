"""`GradientTraces` finds what gradients show of a value that leaves no trace among the values behind it.

`accounts_for_losses` finds whether a value that only the loss reads makes the losses differ.

A branch that ends with a factor of zero, as many do before they are trained, hides whatever differs inside of it: what
the branch is added to agrees. The gradient of that factor is made of the values of the branch all the same. Where it
differs, and nothing else that it is made of does, those are wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from gradscope.comparison.diagnosis.refuting.errors_behind import relative_error
from gradscope.comparison.diagnosis.refuting.float_tensors import FloatTensors
from gradscope.comparison.judging.rows import ComparisonRow
from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.comparison.precision import machine_epsilon
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.layer_graph import NearestKeys, inverted, sources_of
from gradscope.naming import ACTIVATION_GRAD, is_gradient, key_of, split_key

#: How near a difference of losses is to what makes it, and how many times its rounding it is at least.
_NEAR: Final = 1e-3
_CLEAR: Final = 100


def accounts_for_losses(dumps: Dumps, match: Match, rows: Mapping[str, ComparisonRow]) -> bool:
    """Returns whether the losses differ by the difference of a value times its gradient, which agrees.

    Args:
        dumps: The dumps.
        match: The pair of values.
        rows: The rows of pairs, by the reference's keys.
    """
    one, other = dumps.ref.manifest.loss, dumps.cand.manifest.loss
    key = key_of(ACTIVATION_GRAD, split_key(match.ref)[1])
    if one is None or other is None or key not in rows or rows[key].status != "same":
        return False
    tensors = FloatTensors(dumps.ref)
    value, gradient = tensors.tensor(match.ref), tensors.tensor(key)
    if value is None or gradient is None or not all(map(dumps.cand.has_tensor, match.recipe.keys)):
        return False
    found = match.recipe.array(dumps.cand)
    if found.shape != value.shape or gradient.shape != value.shape:
        return False
    expected, rounding = other - one, float(machine_epsilon("float32")) * abs(one)
    made = float((gradient * (found.astype(np.float64) - value)).sum())
    return abs(expected) > _CLEAR * rounding and abs(made - expected) <= _NEAR * abs(expected)


class GradientTraces:
    """GradientTraces finds the errors of the gradients that are computed next from a value of one program.

    Args:
        source: The dump.
        rows: The rows of what is compared, by key.
    """

    def __init__(self, source: DumpSource, rows: Mapping[str, ComparisonRow]) -> None:
        sources = sources_of(source.manifest.layers)
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
