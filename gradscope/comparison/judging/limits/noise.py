"""`DefaultLimits` returns the default tolerance and the noise floor of each pair.

A *noise floor* is how far a tensor of the reference moves under changes that make no difference. A calibrated
reference stores one with each computed tensor. The metric `noise` is `rel_l2` divided by the floor, and up to
`noise_limit`, which is `WITHIN` floors unless these are large, the tensors count as the same. A candidate of lower
precision than the reference is compared with the floor that was measured with that precision.

A floor is measured with one compiler. Where another one made the candidate, which sums in other orders, a floor counts
`_OTHER_COMPILER` times, as far as that stays within the default tolerance.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from gradscope.comparison.default_tolerances import FULL, READ_FAMILIES, default_tolerance, in_products, matmul_dtype
from gradscope.comparison.judging.rounding.inherited_precision import InheritedPrecision
from gradscope.comparison.pairing.matching import Dumps
from gradscope.comparison.precision import (
    coarser,
    comparable,
    component_name,
    dtype_class,
    machine_epsilon,
)
from gradscope.dump.manifest.json_text import as_float
from gradscope.dump.manifest.manifest import Entry
from gradscope.dump.record import Json

#: The statistic that stores the noise floor of a tensor, and those that store the floor in lower precision.
NOISE: Final = "noise"
LOW_PRECISION_NOISE: Final = {"float32": "noise@float32", "bfloat16": "noise@bfloat16"}

_FLOORS: Final = (NOISE, *LOW_PRECISION_NOISE.values())

#: The number of noise floors up to which a difference is noise: a floor is the largest of only a few samples.
WITHIN: Final = 10.0
#: The largest `rel_l2` of which that number is true: zeros are 1 away from a tensor, and its negative is 2. Of a larger
#: floor, as many count as are in `_LARGE_FLOORS`.
_MOST_NOISE: Final = 0.5
_LARGE_FLOORS: Final = 2.0

#: How many times a floor counts where the programs were compiled otherwise. A sum that cancels moved by 22 floors
#: between two versions of XLA of one year (2026-11: the gradient of a batch norm's bias, jaxlib 0.9.0 and 0.10.2).
_OTHER_COMPILER: Final = 10.0

#: What the provenance of a run states of its compiler, beside the versions in `_VERSIONS`.
_COMPILER: Final = ("backend", "device", "xla_flags")
_VERSIONS: Final = ("jax", "jaxlib", "torch")

#: The error of an element by its own last rounding, in machine epsilons.
_LAST_ROUNDING: Final = 0.5


def noise_floor(ref: Entry, cand: Entry, *, reduced: bool, computed_in: tuple[str, str] | None = None) -> float | None:
    """Returns the noise floor of a tensor.

    Args:
        ref: The reference's entry.
        cand: The candidate's entry.
        reduced: Whether the candidate multiplied float32 matrices with fewer digits than the reference.
        computed_in: The dtypes in which the reference's and the candidate's tensor were computed; None for their own.

    Returns:
        The floor as `rel_l2`, at least the rounding of single elements; None where the reference has no floor for the
        candidate's precision.
    """
    if not any(name in ref.stats for name in _FLOORS):
        return None  # as in most dumps
    if dtype_class(ref.dtype) not in ("float", "complex") or dtype_class(cand.dtype) != dtype_class(ref.dtype):
        return None
    own, other = computed_in or (ref.dtype, cand.dtype)
    dtype = coarser(own, other)
    statistic = NOISE
    if reduced or dtype != component_name(own):
        statistic = LOW_PRECISION_NOISE["float32" if dtype == "float32" and not reduced else "bfloat16"]
    floor = _floor(ref.stats, statistic)
    return None if floor is None else max(floor, _LAST_ROUNDING * machine_epsilon(dtype))


def in_noise_floors(rel_l2: Json | None, floor: float | None) -> float | None:
    """Returns an error in units of the noise floor; None where there is no floor, or no error."""
    return None if floor is None or rel_l2 is None else as_float(rel_l2) / floor


def noise_limit(floor: float) -> float:
    """Returns the largest `rel_l2` that is noise.

    Args:
        floor: The noise floor of the tensor.
    """
    return min(WITHIN * floor, max(_MOST_NOISE, _LARGE_FLOORS * floor))


def _floor(stats: Mapping[str, object], name: str) -> float | None:
    value = stats.get(name)
    return as_float(value) if isinstance(value, int | float | str) else None


def _compiler(provenance: Mapping[str, Json]) -> tuple[Json, ...]:
    """Returns what a run states of what compiled it."""
    versions = provenance.get("versions")
    stated = versions if isinstance(versions, Mapping) else {}
    return (*map(provenance.get, _COMPILER), *map(stated.get, _VERSIONS))


class Precision(Protocol):
    """A `Precision` tells in which dtype the tensors of a dump were computed."""

    def dtype(self, entry: Entry) -> str:
        """Returns the coarsest dtype that went into a tensor; its own where that holds no floating-point numbers."""
        ...


class DefaultLimits:
    """DefaultLimits returns the limits of pairs by default, from how the dumps were computed.

    Args:
        dumps: The dumps.
        ref: The precision of the reference's tensors.
        cand: That of the candidate's.
    """

    def __init__(self, dumps: Dumps, ref: Precision, cand: Precision) -> None:
        before, products = (matmul_dtype(side.manifest.provenance) for side in (dumps.ref, dumps.cand))
        self._products = coarser(before, products)
        self._lowered = self._products != before
        self._ref, self._cand = ref, cand
        one, other = (_compiler(side.manifest.provenance) for side in (dumps.ref, dumps.cand))
        self._other_compiler = one != other

    @classmethod
    def of_whole(cls, dumps: Dumps, cand_dtype: str | None) -> DefaultLimits:
        """Returns the limits of whole programs, whose tensors inherit what they are computed from.

        Args:
            dumps: The dumps.
            cand_dtype: The dtype in which the candidate was computed, as the user says; None for what the dump shows.
        """
        return cls(dumps, InheritedPrecision(dumps.ref), InheritedPrecision(dumps.cand, cand_dtype))

    def tolerance(self, ref: Entry, cand: Entry) -> float:
        """Returns the default tolerance on `rel_l2` of two entries."""
        return default_tolerance(ref.family, *self._computed_in(ref, cand), products=self._products)

    def exact_tolerance(self, ref: Entry, cand: Entry) -> float:
        """Returns what `tolerance` would be if float32 products had the digits of float32."""
        return default_tolerance(ref.family, *self._computed_in(ref, cand))

    def noise_floor(self, ref: Entry, cand: Entry) -> float | None:
        """Returns the noise floor of two entries, which have to be those of owners; None where there is none."""
        floor = noise_floor(ref, cand, computed_in=self._computed_in(ref, cand), reduced=self._lowered)
        if floor is None or not self._other_compiler:
            return floor
        return min(_OTHER_COMPILER * floor, max(floor, self.tolerance(ref, cand) / WITHIN))

    def dtype(self, ref: Entry, cand: Entry) -> str | None:
        """Returns the coarser dtype in which two tensors were computed; None where they hold no such numbers."""
        computed_in = self._computed_in(ref, cand)
        if not comparable(*computed_in) or dtype_class(ref.dtype) not in ("float", "complex"):
            return None
        dtype = coarser(*computed_in)
        return in_products(dtype, FULL if ref.family in READ_FAMILIES else self._products)

    def _computed_in(self, ref: Entry, cand: Entry) -> tuple[str, str]:
        return self._ref.dtype(ref), self._cand.dtype(cand)
