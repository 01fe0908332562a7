"""`CommonFactors` tells a tensor that its step multiplies by a factor from one that has errors of rounding alone.

Errors of rounding have nothing to do with the values: of `n` of them, the part along the tensor itself is their size
by `sqrt(n)`, and no more than a few times that, or what is inherited, behind sums and norms over few values. In ports
of 40 networks, nearly all of them right (2026-11), 1,055 tensors were over their tolerances by rounding. Of those where
half of the error was along the tensor, that part was at most 0.69 of it, and 2.1 times as much. A factor is all of it.

A factor that all elements have, with next to nothing left, is no rounding, whatever was inherited: in the ports of 46
networks of PyTorch (2026-11), the part along a gradient that was more than 5e-4 was at most 1.6 times what was left of
the error. Where the gradient of a residual was multiplied by 1.01, it was 12 to 19 times.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final

from gradscope.comparison.judging.limits.measured_pairs import MeasuredPair
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.json_text import as_float

#: The least share of an error that is along the tensor, of a factor.
_SHARE: Final = 0.75

#: How many times as much as rounding and what is inherited make of it.
_TIMES: Final = 4.0

#: How many times what is left of an error a factor of all elements is, and the fewest elements that show one.
_ALONE: Final = 5.0
_FEWEST: Final = 64


class CommonFactors:
    """CommonFactors has how much longer or shorter tensors are, along the reference's.

    Args:
        ref: The reference.
        pairs: The pairs of tensors.
        errors: The `rel_l2` of tensors, by the keys of owners.
    """

    def __init__(self, ref: DumpSource, pairs: Iterable[MeasuredPair], errors: Mapping[str, float]) -> None:
        self._ref, self._errors = ref, errors
        self._metrics = {pair.owner: pair.evidence.metrics for pair in pairs}

    def is_own(self, key: str, before: Iterable[str]) -> bool:
        """Returns whether most of a tensor's error is a factor that nothing which it is computed from has.

        Args:
            key: The key of the reference's owner.
            before: What the tensor is computed from.
        """
        own, inherited = self._along(key), [(self._errors[each], self._along(each)) for each in before]
        if not inherited or not own > _SHARE * self._errors[key] or any(math.isnan(along) for _, along in inherited):
            return False
        noise = max(error for error, _ in inherited) / math.sqrt(max(1, math.prod(self._ref.entry(key).shape)))
        return own > _TIMES * (noise + max(along for _, along in inherited))

    def is_of_all(self, key: str) -> bool:
        """Returns whether the candidate's tensor is a multiple of the reference's, but for far less than the factor.

        Args:
            key: The key of the reference's owner.
        """
        along, error = self._along(key), self._errors[key]
        left = math.sqrt(max(0.0, error * error - along * along))
        return math.prod(self._ref.entry(key).shape) >= _FEWEST and along > _ALONE * left

    def _along(self, key: str) -> float:
        """Returns by how much the part of the candidate along the reference is longer or shorter; NaN unless known."""
        metrics = self._metrics.get(key, {})
        ratio, away = (as_float(metrics.get(name, math.nan)) for name in ("norm_ratio", "1-cos"))
        return 0.0 if metrics.get("bit_equal") else abs(ratio * (1 - away) - 1)
