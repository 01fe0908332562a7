"""Pair floors are the rounding floors of pairs of tensors, and what is within them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from gradscope.comparison.judging.rounding.floor import UNRELATED, Floor
from gradscope.comparison.judging.rounding.rounding_floors import RoundingFloors
from gradscope.comparison.metrics.evidence import PairEvidence
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.json_text import as_float

#: The absolute cosine from which two tensors are multiples of each other, as rounding never is; how far it may be from
#: one where a few elements are most of their difference; and up to which they have little in common.
_PROPORTIONAL: Final = 0.999
_ROUNDED: Final = 1e-9
_UNLIKE: Final = 0.7

#: How many elements of the largest size make a difference as long as that of several, and as that of more than one.
_SEVERAL: Final = 4
_NOT_ONE: Final = 1.1


class PairFloors:
    """PairFloors returns the floors of pairs: those of the reference, or of the candidate where that knows of none.

    A program knows the floor of a tensor by the layers around it, which a port may have no scopes for.

    Args:
        ref: The reference.
        cand: The candidate.
    """

    def __init__(self, ref: DumpSource, cand: DumpSource) -> None:
        self._sources = ref, cand
        on_cpu = any(each.manifest.provenance.get("backend") == "cpu" for each in self._sources)
        self._floors = (
            RoundingFloors(ref, is_added_in_own_type=on_cpu),
            RoundingFloors(cand, is_added_in_own_type=on_cpu),
        )
        self._in_ref = bool(ref.manifest.layers)

    def floor(self, ref: str, cand: Sequence[str], dtype: str, distance: float | None = None) -> Floor | None:
        """Returns the floor of a pair; None where it has none.

        Args:
            ref: The reference's key.
            cand: The candidate's keys, of which the tensor is made.
            dtype: The coarser dtype that it was computed in.
            distance: The l2 norm of the difference; None where it is not known.
        """
        own = self._floors[0].floor(ref, dtype)
        if own is None:
            return self._of_cand(ref, cand, dtype)
        if own.is_estimate or distance is None or not own.l2 < distance < math.inf:
            return own
        # All gradients of a loss that is a sum are larger than those of a mean, and so is what is rounding of them.
        other = self._of_cand(ref, cand, dtype)
        larger = other is not None and not other.is_estimate and other.l2 > own.l2
        return replace(own, l2=other.l2) if other is not None and larger else own

    def _of_cand(self, ref: str, cand: Sequence[str], dtype: str) -> Floor | None:
        """Returns the floor of a pair by the candidate's layers; None where it has none."""
        found = self._floors[1].floor(cand[0], dtype)
        if found is None or not self._in_ref:
            return found
        size, whole = (
            math.prod(each.entry(key).shape) for each, key in zip(self._sources, (ref, cand[0]), strict=True)
        )
        share = math.sqrt(size / max(1, whole))  # the norm of a part, of elements that have as many terms each
        if len(cand) > 1 or share > 1:
            return None
        return found.times(share)

    def summed(self, ref: str) -> Sequence[str]:
        """Returns the keys of the gradients that the gradient of a bias of the reference is the sum of."""
        return self._floors[0].summed(ref)


def is_inherited(evidence: PairEvidence, floor: Floor) -> bool:
    """Returns whether the gradients that two tensors are the sums of, which agree, make up for their difference."""
    return evidence.distance is not None and evidence.most is None and 0 < evidence.distance <= floor.inherited


def is_within(evidence: PairEvidence, floor: Floor) -> bool:
    """Returns whether two tensors, of terms that cancel, differ by no more than a floor."""
    return is_inherited(evidence, floor) or is_zero(evidence, floor)


def is_zero(evidence: PairEvidence, floor: Floor) -> bool:
    """Returns whether two tensors are zero but for rounding."""
    if evidence.most is not None:  # both are no longer than that, and so is their difference
        return is_rounding(evidence.most, evidence.most, floor)
    rel_l2 = as_float(evidence.metrics.get("rel_l2", 0.0))
    if evidence.distance is None or rel_l2 <= 0:
        return False
    if floor.is_estimate:
        likeness = abs(1 - as_float(evidence.metrics.get("1-cos", 0.0)))
        if not floor.is_passed and _are_multiples(evidence, floor, likeness):
            return False
        # What is made of a few numbers of rounding is alike by chance, and these are judged by themselves.
        one_is_zero = not 0 < as_float(evidence.metrics.get("norm_ratio", 0.0)) < math.inf
        if (likeness <= _UNLIKE and not one_is_zero) or floor.is_passed:
            floor = floor.times(UNRELATED)
    return is_rounding(evidence.distance, evidence.distance / rel_l2, floor)


def _are_multiples(evidence: PairEvidence, floor: Floor, likeness: float) -> bool:
    """Returns whether two tensors are multiples of each other, in more elements than by chance.

    Rounding is a few units in the last place of few elements, which are multiples of others that are as few.
    """
    largest = as_float(evidence.metrics.get("max_abs", 0.0))
    if evidence.distance is None or not largest > 0:
        return False
    if (spread := (evidence.distance / largest) ** 2) >= _SEVERAL:
        return likeness >= _PROPORTIONAL
    differing = as_float(evidence.metrics.get("ulp_share", 0.0)) * floor.elements
    return spread >= _NOT_ONE and differing >= 2 * _SEVERAL and likeness >= 1 - _ROUNDED


def is_rounding(distance: float, l2: float, floor: Floor) -> bool:
    """Returns whether a difference is rounding of terms that cancel.

    Args:
        distance: The l2 norm of the difference.
        l2: That of the reference.
        floor: The floor of the tensor.
    """
    return distance <= floor.l2 and l2 <= floor.cancelled
