"""Noise: how far a reference's own tensors move under changes that make no difference, and judging by that.

A calibrated reference has a *noise floor* with each computed tensor. Error is then counted in noise floors: `noise` is
`rel_l2` over the floor, and what is within ten of them is noise. A candidate of lower precision than the reference is
held against what low precision does to the reference itself.

What is expected of a pair of tensors before anybody looks at them: a default tolerance, and a floor of noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gradscope.comparison.pairing.matching import Dumps
from gradscope.comparison.precision import (
    coarser,
    component_name,
    default_tolerance,
    kind_of,
    machine_epsilon,
    reduced_matmul,
)
from gradscope.dump.manifest.json_text import as_float
from gradscope.dump.manifest.manifest import Entry
from gradscope.dump.record import Json

#: The statistic that holds the noise floor of a tensor, and those that hold what a run in lower precision makes of it.
NOISE: Final = "noise"
LOW_PRECISION_NOISE: Final = {"float32": "noise@float32", "bfloat16": "noise@bfloat16"}

#: Up to how many times the noise floor error is noise: a floor is the largest of a handful of samples.
WITHIN: Final = 10.0

#: Machine epsilons that every element may be off by its own last rounding.
_LAST_ROUNDING: Final = 0.5


def noise_floor(ref: Entry, cand: Entry, *, reduced: bool) -> float | None:
    """The noise floor of a tensor.

    Args:
        ref: The reference's entry.
        cand: The candidate's.
        reduced: Whether the candidate was computed with reduced matmul precision, and the reference was not.

    Returns:
        The floor as `rel_l2`, never below the rounding of its elements; None where the reference has none for such a
        candidate.
    """
    if kind_of(ref.dtype) not in ("float", "complex") or kind_of(cand.dtype) != kind_of(ref.dtype):
        return None
    dtype = coarser(ref.dtype, cand.dtype)
    statistic = NOISE
    if reduced or dtype != component_name(ref.dtype):
        statistic = LOW_PRECISION_NOISE["float32" if dtype == "float32" and not reduced else "bfloat16"]
    floor = _floor(ref.stats, statistic)
    return None if floor is None else max(floor, _LAST_ROUNDING * machine_epsilon(dtype))


def in_floors(rel_l2: Json | None, floor: float | None) -> float | None:
    """How many noise floors an error is; None where there is no floor, or no error."""
    return None if floor is None or rel_l2 is None else as_float(rel_l2) / floor


def _floor(stats: Mapping[str, object], name: str) -> float | None:
    value = stats.get(name)
    return as_float(value) if isinstance(value, int | float | str) else None


class Expectations:
    """What two dumps, by how they were computed, have their tensors judged by.

    Args:
        dumps: The dumps.
    """

    def __init__(self, dumps: Dumps) -> None:
        ref, cand = (reduced_matmul(side.manifest.provenance) for side in (dumps.ref, dumps.cand))
        self._reduced = ref or cand
        self._lowered = cand and not ref

    def tolerance(self, ref: Entry, cand: Entry) -> float:
        """The default tolerance on `rel_l2` of two entries."""
        return default_tolerance(ref.family, ref.dtype, cand.dtype, reduced=self._reduced)

    def noise_floor(self, ref: Entry, cand: Entry) -> float | None:
        """The noise floor of two entries, those of owners; None where the reference has none."""
        return noise_floor(ref, cand, reduced=self._lowered)
