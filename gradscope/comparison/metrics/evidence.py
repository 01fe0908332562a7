"""`evidence_of` returns the evidence of a pair: its metrics, or the reason why it cannot be compared.

The evidence comes from the elements where both dumps hold them, else from the statistics. Pairs that cannot be compared
(two shapes, two kinds of dtype, a tensor and none) have evidence too: no tolerance would pass them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Final

import numpy as np

from gradscope.arrays.dtypes import is_key
from gradscope.arrays.widening import real_values
from gradscope.comparison.layout.operands import Operand
from gradscope.comparison.metrics.block_pairs import block_pairs, pairs_of_few, unequal_pairs
from gradscope.comparison.metrics.bounds import Bound, hashes_agree, least_rel_l2
from gradscope.comparison.metrics.examples.example_errors import example_error
from gradscope.comparison.metrics.examples.example_spread import ExampleError
from gradscope.comparison.metrics.fills import Fills, fills_of
from gradscope.comparison.metrics.measure_pair import measure
from gradscope.comparison.metrics.metrics import Metrics
from gradscope.comparison.precision import comparable, scale_of
from gradscope.dump.manifest.manifest import Entry
from gradscope.dump.record import Json
from gradscope.naming import PARAM_GRAD, example_axes
from gradscope.naming.wording import brief, counted
from gradscope.stats import stats_of_chunks

#: The `rel_l2` from which the signs of a gradient are counted: below, few of them can flip.
_FLIPS_FROM: Final = 1e-3

#: The most elements of a tensor that is read at once.
_FEW_ELEMENTS: Final = 1 << 13


@dataclass(frozen=True, slots=True, kw_only=True)
class PairEvidence:
    """PairEvidence stores how the two tensors of a pair differ, before a tolerance is applied.

    Attributes:
        metrics: The metrics that apply, by column name; empty where nothing was compared.
        needed: The smallest tolerance on `rel_l2` that would pass; inf where none would.
        bit_equal: Whether the bytes are the same; None where that is unknown.
        why: A remark about what the metrics do not show, such as an obstacle; "" for none.
        examples: The error of per-example gradients, zero where they are equal; None for other tensors.
        distance: l2(d), the norm of the difference; None where there are no elements, or not all are finite alike.
        most: The sum of both norms, which the difference is no longer than; None where the elements tell its own.
    """

    metrics: Mapping[str, Json] = field(default_factory=dict[str, Json])
    needed: float = math.inf
    bit_equal: bool | None = False
    why: str = ""
    examples: ExampleError | None = None
    distance: float | None = None
    most: float | None = None

    def with_metrics(self, **more: float | None) -> PairEvidence:
        """Returns the evidence with more metrics, except those that are None; unchanged where nothing was compared."""
        known: dict[str, Json] = {name: value for name, value in more.items() if value is not None}
        return replace(self, metrics={**self.metrics, **known}) if known and self.metrics else self


def evidence_of(ref: Operand, cand: Operand, closeness: tuple[float, float]) -> PairEvidence:
    """Returns the evidence of a pair.

    Args:
        ref: The reference's tensor.
        cand: The candidate's tensor.
        closeness: `rtol` and `atol` of `numpy.isclose`, for the metric `mismatch`.

    Raises:
        DumpError: One of the dumps is damaged.
    """
    one, other = ref.entry, cand.entry
    if one.absent is not None and other.absent is not None:
        return PairEvidence(needed=0.0, bit_equal=True, why=f"no tensor on either side ({one.absent})")
    if zero := _zero_on_one_side(ref, cand):
        return PairEvidence(needed=0.0, why=zero)
    if obstacle := _obstacle(one, other):
        return PairEvidence(why=obstacle)
    if not (ref.has_tensor and cand.has_tensor):
        return _from_statistics(_measured(ref), _measured(cand))
    return _from_values(ref, cand, one, other, closeness)


def no_gradient_in(side: str) -> str:
    """Returns how the reason begins that a gradient of one dump alone is none: the loss does not depend on its value.

    Args:
        side: `reference` or `candidate`.
    """
    return f"no gradient arrives in the {side}"


def frozen_in(side: str) -> str:
    """Returns why a gradient that one program alone has is no difference: the other one states that it needs none.

    Args:
        side: Which does, `reference` or `candidate`.
    """
    return f"the {side} does not differentiate it (frozen)"


def _zero_on_one_side(ref: Operand, cand: Operand) -> str:
    """Returns that no gradient arrives in one program, and one of zeros in the other, which is the same; else ""."""
    for operand, other, side in ((ref, cand, "reference"), (cand, ref, "candidate")):
        if operand.entry.absent == "disconnected" and _measured(other).stats.get("l2") == 0:
            return f"{no_gradient_in(side)} (disconnected), and the other one's is zero"
    return ""


def _obstacle(ref: Entry, cand: Entry) -> str:
    """Returns why two entries cannot be compared; "" where they can."""
    for entry, side, other in ((ref, "reference", "candidate"), (cand, "candidate", "reference")):
        if entry.absent == "disconnected":
            return f"{no_gradient_in(side)} (disconnected), and in the {other} one does"
        if entry.absent is not None:
            return f"the {side} has no tensor ({entry.absent}), the {other} has one"
    if ref.shape != cand.shape:
        return f"the shape is {ref.shape} in the reference and {cand.shape} in the candidate"
    if not comparable(ref.dtype, cand.dtype):
        return f"{ref.dtype} in the reference cannot be compared with {cand.dtype} in the candidate"
    return ""


def _from_values(ref: Operand, cand: Operand, one: Entry, other: Entry, closeness: tuple[float, float]) -> PairEvidence:
    rtol, atol = closeness
    scale = scale_of(one.dtype, other.dtype, rtol=rtol, atol=atol)
    # Reading a small tensor at once takes half of the time of reading it in chunks.
    few = math.prod(one.shape) <= _FEW_ELEMENTS
    pairs = pairs_of_few(ref.elements(), cand.elements()) if few else unequal_pairs(ref.chunks, cand.chunks)
    if pairs is None and not example_axes(one.family):
        return _of_equal(scale.kind)
    metrics = Metrics(kind=scale.kind) if pairs is None else measure(pairs, scale)
    fills = fills_of(ref, cand) if metrics.needed else None
    if fills is not None:
        metrics = measure(block_pairs(ref.chunks(), cand.chunks()), scale, fills)
    examples = _examples(ref, cand, equal=metrics.bit_equal)
    words = metrics.size // math.prod(one.shape) if is_key(one.dtype) and metrics.size else 0
    conflicts = metrics.nonfinite_mismatch
    return PairEvidence(
        metrics={
            **metrics.columns((*one.shape, words) if words else one.shape),
            **_flips(ref, cand, metrics),
            **({} if examples is None else examples.columns()),
        },
        needed=metrics.needed,
        bit_equal=metrics.bit_equal,
        why=_remark(conflicts, fills),
        examples=examples,
        distance=None if conflicts else metrics.alignment.distance,
    )


def _remark(conflicts: int, fills: Fills | None) -> str:
    """Returns what the norms do not show: positions of which they are not, and two fills; "" for nothing."""
    if conflicts:
        how = "finite on one side only, or not finite in two ways" if fills is None else "masked on one side only"
        return f"{counted(conflicts, 'position')} {how}"
    if fills is None or fills.ref == fills.cand:
        return ""
    return f"a mask writes {brief(fills.ref)}, and {brief(fills.cand)} in the candidate"


@cache  # equal tensors all have the same metrics
def _of_equal(kind: str) -> PairEvidence:
    metrics = Metrics(kind=kind)
    return PairEvidence(
        metrics=metrics.columns(()),
        needed=metrics.needed,
        bit_equal=metrics.bit_equal,
        distance=metrics.alignment.distance,
    )


def _flips(ref: Operand, cand: Operand, metrics: Metrics) -> dict[str, Json]:
    """Returns the share of signs that flip in a parameter's gradient, however small its elements are."""
    if ref.entry.family != PARAM_GRAD or metrics.kind != "float" or metrics.needed < _FLIPS_FROM:
        return {}
    flipped = nonzero = 0
    for one, other in block_pairs(ref.chunks(), cand.chunks()):
        signs, others = np.sign(real_values(one)), np.sign(real_values(other))
        flipped += int(np.count_nonzero(signs * others < 0))
        nonzero += int(np.count_nonzero(signs))
    return {"flipped": flipped / nonzero if nonzero else 0.0}


def _examples(ref: Operand, cand: Operand, *, equal: bool) -> ExampleError | None:
    """Returns the error of per-example gradients; None for other tensors, and for fewer than two examples."""
    entry = ref.entry
    if not example_axes(entry.family) or entry.shape[:1] < (2,):
        return None
    return ExampleError(count=entry.shape[0]) if equal else example_error(ref, cand)


def _measured(operand: Operand) -> Entry:
    """Returns the entry of a tensor with its statistics, which what a recipe makes of others has none of yet."""
    entry = operand.entry
    if entry.stats or not operand.has_tensor:
        return entry
    stats = stats_of_chunks(operand.chunks(), shape=entry.shape, dtype=entry.dtype, tier="core")
    return replace(entry, stats=stats.to_json())


def _from_statistics(ref: Entry, cand: Entry) -> PairEvidence:
    """Returns the evidence from statistics, for pairs of which at least one dump holds no elements."""
    agree = hashes_agree(ref, cand)
    if agree:
        metrics: dict[str, Json] = {"norm_ratio": 1.0, "bit_equal": True}
        return PairEvidence(metrics=metrics, needed=0.0, bit_equal=True, why="judged by its hash: there is no tensor")
    bound = least_rel_l2(ref.stats, cand.stats)
    if bound is None:
        return PairEvidence(bit_equal=agree, why="there is neither a tensor nor a statistic to compare")
    return PairEvidence(
        metrics={"norm_ratio": bound.norm_ratio} if bound.norm_ratio is not None else {},
        needed=bound.rel_l2,
        bit_equal=agree,
        why=f"judged by its statistics: there is no tensor, and {_proof(bound)}",
        most=bound.most,
    )


def _proof(bound: Bound) -> str:
    if math.isinf(bound.rel_l2):
        return f"they differ in {bound.statistic}, which no tolerance covers"
    return f"rel_l2 is at least {brief(bound.rel_l2)}{f', by {bound.statistic}' if bound.statistic else ''}"
