"""The rule `dead` finds units that pass no gradient."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Final

from gradscope import naming
from gradscope.dump.manifest.manifest import Entry
from gradscope.primitive_groups import MOVES
from gradscope.stats.columns import number
from gradscope.stats.findings.rule_evidence import (
    RuleEvidence,
    Suspect,
    Thresholds,
    column,
    columns,
    is_zero,
    suspect,
)
from gradscope.stats.findings.rules.gradient_rules import DEAD_UNITS, silencing_input
from gradscope.stats.findings.rules.harmless_zeros import SATISFIED

#: The fewest examples and positions that say something about a unit.
_EXAMPLES: Final = 8
#: The largest probability at which a share of dead units does not count as chance.
_CHANCE: Final = 1e-4
#: Primitives that end a rectifier; None where the primitive is unknown.
_RECTIFIERS: Final = frozenset({None, "custom_jvp_call", "max", "select_n", "clamp", "jit", "pjit", "mul"})
#: The reason of a zero gradient that names the rectifier where it ends.
_ENDED: Final = re.compile(rf"{DEAD_UNITS}: the output of (.*) is constant wherever")


def dead(evidence: RuleEvidence, thresholds: Thresholds) -> Iterator[Suspect]:
    """Finds rectifiers most of whose units are zero for every example."""
    outputs = evidence.of(naming.ACTIVATION)
    shares = zip(outputs, columns(outputs, "dead"), strict=True)
    found = _not_silenced(evidence, [entry for entry, share in shares if _is_dead(evidence, entry, share, thresholds)])
    if not found:
        return
    most = max(column(entry, "dead") for entry in found)
    first = next(entry for entry in found if column(entry, "dead") > most - 0.1)
    readers = {layer.path for layer in evidence.layers.values() if first.name in layer.inputs}
    after = (entry for entry in found if entry.site.layer in readers)
    worst = next(after, first) if not _is_rectified(evidence, first) else first
    share, units = column(worst, "dead"), worst.shape[-1]
    count, what = column(worst, "size") / units, "examples" if len(worst.shape) == 2 else "positions"
    is_rectified = _is_rectified(evidence, worst)
    state = "zero" if is_rectified else "not positive"
    why = f"has {share:.1%} dead units: {share * units:.0f} of {units} are {state} at all {count:,.0f} {what}"
    why += _end_of_gradient(evidence, worst, is_rectified=is_rectified)
    if _receives_zeros(evidence, worst):
        why += ", as is all that its layer receives: look at what is before it, such as a mask"
    yield suspect("dead", worst, why, found, total=share == 1)


def _end_of_gradient(evidence: RuleEvidence, value: Entry, *, is_rectified: bool) -> str:
    """Returns at which rectifier behind a value of dead units its gradient ends; "" where that is the value's own.

    Args:
        evidence: The manifest.
        value: The value.
        is_rectified: Whether a rectifier made it.
    """
    gradient = evidence.entry(naming.ACTIVATION_GRAD, value.name)
    cause = None if gradient is None else evidence.cause(gradient)
    why = "" if cause is None else cause.why
    ended = _ENDED.match(why)
    place = "" if ended is None else ended[1]
    if not is_rectified:
        # The reason names the rectifier nearest to the loss, of which another layer behind this one may be the cause.
        behind = (each for each in evidence.of(naming.ACTIVATION_GRAD)
                  if each.site.index > value.site.index and each.site.source != value.site.source)  # fmt: skip
        if any((at := evidence.cause(each)) and at.why == why for each in behind):
            place = ""
        return f", and {place or 'a rectifier'} lets nothing of them pass"
    own = f" at {value.site.source}"
    return (
        ""
        if place.endswith((own, f"{own} in {value.site.layer}")) or not place
        else (f", and its gradient ends behind it, at {place}")
    )


def _is_dead(evidence: RuleEvidence, entry: Entry, share: float, thresholds: Thresholds) -> bool:
    if entry.site.operation or len(entry.shape) < 2 or not thresholds.dead < share <= 1:
        return False
    if _is_kept(evidence, entry) or entry.name in evidence.dropped:
        return False
    return _is_beyond_chance(entry, share) and (
        _is_rectified(evidence, entry) or _precedes_rectifier(evidence, entry, share)
    )


def _is_kept(evidence: RuleEvidence, entry: Entry) -> bool:
    """Returns whether a value is what a loss is a sum of, and zero because every margin is kept."""
    return entry.site.source in evidence.places(SATISFIED)


def _not_silenced(evidence: RuleEvidence, entries: Sequence[Entry]) -> Sequence[Entry]:
    """Returns values without those of layers that receive zeros alone, where an input of zeros is why."""
    others = [entry for entry in entries if not _receives_zeros(evidence, entry)]
    if len(others) == len(entries):
        return entries
    silenced = any(silencing_input(evidence, why) for why in evidence.reasons(DEAD_UNITS))
    return others if silenced else entries  # what is silenced is reported where the zeros are


def _receives_zeros(evidence: RuleEvidence, entry: Entry) -> bool:
    layer = evidence.layer_of(entry)
    return layer is not None and layer.rms.get("in") == 0


def _is_beyond_chance(entry: Entry, share: float) -> bool:
    """Returns whether so many units are dead by more than chance.

    In a deep chain all examples become alike, and a unit is positive for all of them or for none, with equal
    probability.
    """
    units = entry.shape[-1]
    examples = column(entry, "size") / units if units else 0.0
    if examples < _EXAMPLES:
        return False
    if share == 1:
        return True  # nothing passes, whatever the reason
    deviations = (2 * share - 1) * math.sqrt(units)
    tail = math.erfc(deviations / math.sqrt(2)) / 2  # of the binomial distribution, which is nearly normal
    return tail < _CHANCE


def _is_rectified(evidence: RuleEvidence, entry: Entry) -> bool:
    zeros = column(entry, "zeros") / max(column(entry, "size"), 1)
    if number(entry.stats, "min") != 0 or zeros < column(entry, "dead"):
        return False
    if entry.site.primitive in MOVES:
        # Its layer moves the elements of what it rectifies: the reason of a zero gradient says that it does.
        return entry.site.source in evidence.places(DEAD_UNITS)
    # A product of zeros alone says nothing of a rectifier in it, unless a gradient was lost at one.
    at_rectifier = entry.site.primitive != "mul" or not is_zero(entry) or evidence.reasons(DEAD_UNITS)
    return entry.site.primitive in _RECTIFIERS and bool(at_rectifier)


def _precedes_rectifier(evidence: RuleEvidence, entry: Entry, share: float) -> bool:
    """Returns whether the gradient of a value is exactly zero where its units are negative, as before a rectifier.

    The zeros are those of units, and not of examples that a mask drops, where a parameter of its layer has as many. Of
    parameters that a loop stacks, those of one iteration count.
    """
    gradient = evidence.entry(naming.ACTIVATION_GRAD, entry.name)
    if gradient is None or gradient.absent is not None or number(entry.stats, "max") == number(entry.stats, "min"):
        return False
    if is_zero(gradient):
        cause = evidence.cause(gradient)
        return cause is not None and cause.why.startswith(DEAD_UNITS)
    layer = evidence.layer_of(entry)
    learned = (evidence.entry(naming.PARAM_GRAD, name) for name in (() if layer is None else layer.params))
    gradients = [each for each in learned if each is not None and each.absent is None]
    looped = bool(entry.site.iteration)
    own = (_has_zeros(each, share / (each.shape[0] if looped and each.shape else 1)) for each in gradients)
    return _has_zeros(gradient, share) and (not gradients or any(own))


def _has_zeros(gradient: Entry, share: float) -> bool:
    return column(gradient, "zeros") >= share * column(gradient, "size")
