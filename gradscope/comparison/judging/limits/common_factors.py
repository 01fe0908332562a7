"""`CommonFactors` tells a tensor that its step multiplies by a factor from one that has errors of rounding alone.

Errors of rounding have nothing to do with the values: of `n` of them, the part along the tensor itself is their size
by `sqrt(n)`, and no more than a few times that, or what is inherited, behind sums and norms over few values. In ports
of 40 networks, nearly all of them right (2026-11), 1,055 tensors were over their tolerances by rounding. Of those where
half of the error was along the tensor, that part was at most 0.69 of it, and 2.1 times as much. A factor is all of it.
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

    def _along(self, key: str) -> float:
        """Returns by how much the part of the candidate along the reference is longer or shorter; NaN unless known."""
        metrics = self._metrics.get(key, {})
        ratio, away = (as_float(metrics.get(name, math.nan)) for name in ("norm_ratio", "1-cos"))
        return 0.0 if metrics.get("bit_equal") else abs(ratio * (1 - away) - 1)
