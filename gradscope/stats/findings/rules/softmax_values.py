"""A value's statistics show whether it is a softmax, how it is spread, and what reads it."""

from __future__ import annotations

import math
from typing import Final

from gradscope import naming
from gradscope.dump.manifest.manifest import Entry
from gradscope.stats import units
from gradscope.stats.findings.rule_evidence import RuleEvidence, column

#: Primitives that end a softmax.
_SOFTMAX: Final = frozenset({"div", "exp", "custom_jvp_call", "convert_element_type"})


def concentration(entry: Entry) -> float:
    """Returns how far a softmax is from equal weights, 0, to a single weight, 1."""
    count, rms = entry.shape[-1], column(entry, "rms")
    return units.concentration(count, count * rms * rms, column(entry, "zeros") / column(entry, "size"))


def is_softmax(entry: Entry) -> bool:
    """Returns whether the elements are shares that sum to 1 along the last axis, by their mean."""
    count = entry.shape[-1] if len(entry.shape) > 1 else 0
    if count < 3 or entry.site.primitive not in _SOFTMAX or not column(entry, "size") > 0:
        return False
    low, high = column(entry, "min"), column(entry, "max")
    chosen = low == 0 and high == 1 and column(entry, "zeros") * count == column(entry, "size") * (count - 1)
    if chosen and entry.site.primitive == "convert_element_type":
        return False  # a one-hot code
    mean = column(entry, "mean") * count
    return low >= 0 and high <= 1.01 and abs(mean - 1) < 2e-3 and high > low


def is_normalised_again(evidence: RuleEvidence, entry: Entry) -> bool:
    """Returns whether the gradient of a softmax is what the cross-entropy of its softmax has, of one label each.

    It is the softmax of shares, which is between 1 / (K - 1 + e) and e / (K - 1 + e), less 1 for the label, divided
    by the number of examples: of all, or of those that a mask leaves, whose gradient is not zero. Its sum is zero,
    as a softmax does not change where a number is added to all logits.
    """
    gradient = evidence.entry(naming.ACTIVATION_GRAD, entry.name)
    if gradient is None or gradient.absent is not None or not column(gradient, "rms"):
        return False
    count = entry.shape[-1]
    centred = abs(column(gradient, "mean")) < 1e-3 * column(gradient, "rms")
    size = column(entry, "size")
    examples = {size / count, (size - column(gradient, "zeros")) / count}
    return centred and any(_is_of_cross_entropy(gradient, count, each) for each in examples)


def _is_of_cross_entropy(gradient: Entry, count: int, examples: float) -> bool:
    least, most = 1 / (count - 1 + math.e), math.e / (count - 1 + math.e)
    low, high = column(gradient, "min") * examples, column(gradient, "max") * examples
    return -1 < low < most - 1 + 0.01 and 0.99 * least < high < 1.01 * most
