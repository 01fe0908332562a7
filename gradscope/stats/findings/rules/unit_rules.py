"""The rules `dead` and `saturated` find units and functions that pass no gradient."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Final, NamedTuple

from gradscope import naming
from gradscope.dump.manifest.manifest import Entry, Layer
from gradscope.dump.manifest.operation_facts.saturation import Saturation
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
from gradscope.stats.findings.rules.gradient_rules import DEAD_UNITS, GATED, SATISFIED, silencing_input
from gradscope.stats.findings.rules.kernels import KernelLayer, behind_kernels, kernel_layers
from gradscope.stats.findings.rules.softmax_values import concentration, is_normalised_again, is_softmax

#: The fewest examples and positions that say something about a unit.
_EXAMPLES: Final = 8
#: The largest probability at which a share of dead units does not count as chance.
_CHANCE: Final = 1e-4
#: Primitives that end a rectifier; None where the primitive is unknown.
_RECTIFIERS: Final = frozenset({None, "custom_jvp_call", "max", "select_n", "clamp", "jit", "pjit", "mul"})
#: How the reason of a zero gradient begins where a mask leaves a softmax no choice.
_ONE_LEFT: Final = "masked: in each row the mask leaves one entry"
#: Concentration of a softmax above which it is saturated, at the initialisation and later.
_CONCENTRATED: Final = (0.6, 0.9)
#: Likewise of a tanh behind a layer with a kernel, at the initialisation, where both limits are reached about as often.
_TANH_AT_START: Final = 0.6
#: The mean of a tanh beyond which one limit is reached much more often than the other.
_ONE_SIDED: Final = 0.3
#: The most layers around a layer; those of a file from anywhere may be around themselves.
_DEEPEST: Final = 64
#: Share of noise in the variance of what a function receives above which it chooses by noise, and not by its weights.
_CHOOSES: Final = 0.1


def dead(evidence: RuleEvidence, thresholds: Thresholds) -> Iterator[Suspect]:
    """Finds rectifiers most of whose units are zero for every example."""
    outputs = evidence.of(naming.ACTIVATION)
    shares = zip(outputs, columns(outputs, "dead"), strict=True)
    found = _not_silenced(evidence, [entry for entry, share in shares if _is_dead(evidence, entry, share, thresholds)])
    if not found:
        return
    most = max(column(entry, "dead") for entry in found)
    first = next(entry for entry in found if column(entry, "dead") > most - 0.1)
    after = (entry for entry in found if first.name in getattr(evidence.layer_of(entry), "inputs", ()))
    worst = next(after, first) if not _is_rectified(evidence, first) else first
    share, units = column(worst, "dead"), worst.shape[-1]
    examples = column(worst, "size") / units
    why = f"has {share:.1%} dead units: {share * units:.0f} of {units} are zero for all of {examples:.0f} examples"
    if _receives_zeros(evidence, worst):
        why += ", as is all that its layer receives: look at what is before it, such as a mask"
    yield suspect("dead", worst, why, found, total=share == 1)


def _is_dead(evidence: RuleEvidence, entry: Entry, share: float, thresholds: Thresholds) -> bool:
    if entry.site.operation or len(entry.shape) < 2 or not thresholds.dead < share <= 1 or _is_kept(evidence, entry):
        return False
    return _is_beyond_chance(entry, share) and (
        _is_rectified(evidence, entry) or _precedes_rectifier(evidence, entry, share)
    )


def _is_kept(evidence: RuleEvidence, entry: Entry) -> bool:
    """Returns whether a value is what a loss is a sum of, and zero because every margin is kept."""
    kept = (cause.why for cause in evidence.manifest.causes if cause.why.startswith(SATISFIED))
    return entry.site.source is not None and any(f" at {entry.site.source} " in why for why in kept)


def _not_silenced(evidence: RuleEvidence, entries: Sequence[Entry]) -> Sequence[Entry]:
    """Returns values without those of layers that receive zeros alone, where an input of zeros is why."""
    others = [entry for entry in entries if not _receives_zeros(evidence, entry)]
    if len(others) == len(entries):
        return entries
    silenced = any(silencing_input(evidence, cause.why) for cause in evidence.manifest.causes)
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
    # A product of zeros alone says nothing of a rectifier in it, unless a gradient was lost at one.
    at_rectifier = entry.site.primitive != "mul" or not is_zero(entry) or _is_lost_at_rectifier(evidence)
    return entry.site.primitive in _RECTIFIERS and at_rectifier


def _is_lost_at_rectifier(evidence: RuleEvidence) -> bool:
    return any(cause.why.startswith(DEAD_UNITS) for cause in evidence.manifest.causes)


def _precedes_rectifier(evidence: RuleEvidence, entry: Entry, share: float) -> bool:
    """Returns whether the gradient of a value is exactly zero where its units are negative, as before a rectifier."""
    gradient = evidence.entry(naming.ACTIVATION_GRAD, entry.name)
    if gradient is None or gradient.absent is not None or number(entry.stats, "max") == number(entry.stats, "min"):
        return False
    if is_zero(gradient):
        cause = evidence.cause(gradient)
        return cause is not None and cause.why.startswith(DEAD_UNITS)
    return column(gradient, "zeros") >= share * column(gradient, "size")


def saturated(evidence: RuleEvidence, thresholds: Thresholds) -> Iterator[Suspect]:
    """Finds bounded functions at their limits: tanh, sigmoid, erf, softmax, and a softmax of a softmax."""
    values = saturated_activations(evidence, thresholds)
    shown = [_Saturated(entry.site.index, entry, entry.name, entry.site.source, _of_value(entry)) for entry in values]
    functions = (_saturated_at(evidence, inner) for inner in saturated_functions(evidence, thresholds))
    shown += [each for each in functions if each is not None]
    if shown:
        first = min(shown, key=lambda each: each.place)
        why = f"{first.why}, and no gradient passes there"
        concerned = [each.entry for each in shown]
        found = suspect("saturated", first.entry, why, [*concerned, *_closed_by(evidence, concerned)])
        finding = replace(found.finding, name=first.name, source=first.source)
        yield replace(found, finding=finding, begin=min(first.place, found.begin))
    yield from _normalised_again(evidence)


def _normalised_again(evidence: RuleEvidence) -> Iterator[Suspect]:
    """Finds softmaxes whose shares are the logits of another one.

    The program says so where gradscope has seen it; of a dump that has no program, as PyTorch's, the gradient does.
    """
    rest = "softmax whose result goes through another one: differences of at most 1 remain of its logits"
    entries: dict[str, Entry] = {}
    for inner in evidence.manifest.saturations:
        if inner.again and (shown := _saturated_at(evidence, inner)) is not None:
            named = any(name == shown.name for name in inner.names)
            entries[shown.name] = shown.entry
            how = "is a" if named else "computes a" if shown.why.startswith("computes") else "goes into a"
            found = suspect("saturated", shown.entry, f"{how} {rest}")
            finding = replace(found.finding, name=shown.name, source=inner.source)
            yield replace(found, finding=finding, begin=min(inner.index, found.begin))
    for entry in evidence.of(naming.ACTIVATION):
        if entry.name not in entries and is_softmax(entry) and is_normalised_again(evidence, entry):
            yield suspect("saturated", entry, f"is a {rest}")


def _closed_by(evidence: RuleEvidence, saturated: Sequence[Entry]) -> list[Entry]:
    """Returns the gradients that are zero because saturated gates, or their complements, are 0 in every element.

    A gate that is exactly 0 or 1 everywhere multiplies one of two signals by zeros. The signals are those that the
    layers receive that receive the gate.
    """
    gates = {each.name for each in saturated if _is_at_one_limit(each)}
    beside = {name for layer in evidence.manifest.layers if gates.intersection(layer.inputs) for name in layer.inputs}
    lost = [cause for cause in evidence.manifest.causes if cause.why.startswith(GATED)]
    closed = {cause.why for cause in lost if cause.family == naming.ACTIVATION_GRAD and cause.name in beside}
    entries = (evidence.entry(cause.family, cause.name) for cause in lost if cause.why in closed)
    return [entry for entry in entries if entry is not None]


def _is_at_one_limit(entry: Entry) -> bool:
    low, high = number(entry.stats, "min"), number(entry.stats, "max")
    return low == high and low in (0.0, 1.0)


class _Saturated(NamedTuple):
    """A `_Saturated` function has a place in execution, a tensor that shows it, its name, a line, and a reason."""

    place: int
    entry: Entry
    name: str
    source: str | None
    why: str


def _of_value(entry: Entry) -> str:
    share = number(entry.stats, "saturated")
    return _at_limits(share) if share is not None else _on_one(concentration(entry))


def _of_function(inner: Saturation) -> str:
    return _on_one(inner.saturated) if inner.function == "softmax" else _at_limits(inner.saturated)


def _at_limits(share: float) -> str:
    return f"is saturated: {share:.1%} of its elements within 0.01 of a limit"


def _on_one(share: float) -> str:
    return f"is saturated: {share:.1%} of its weight on one element"


def saturated_functions(evidence: RuleEvidence, thresholds: Thresholds) -> Sequence[Saturation]:
    """Returns the bounded functions inside layers that are saturated, in execution order."""
    limit = _CONCENTRATED[evidence.is_trained]
    return [
        inner
        for inner in evidence.manifest.saturations
        if inner.saturated > (limit if inner.function == "softmax" else thresholds.saturated)
        and not (inner.again or inner.names or inner.noise > _CHOOSES or _is_left_by_mask(evidence, inner.source))
    ]


def _saturated_at(evidence: RuleEvidence, inner: Saturation) -> _Saturated | None:
    """Returns a function with the tensor that shows it: what its layer returns, or else what it receives."""
    what = f"a {inner.function} that {_of_function(inner)}"
    for name in inner.names:
        if (entry := evidence.entry(naming.ACTIVATION, name)) is not None:
            return _Saturated(inner.index, entry, name, inner.source, _of_function(inner))
    for layer in _and_around(evidence, inner.layer):
        for name in (layer.path, *layer.outputs):  # a part of the layer may return the value, too, and is what names it
            if (entry := evidence.entry(naming.ACTIVATION, name)) is not None:
                return _Saturated(inner.index, entry, name, inner.source, f"computes {what}")
    for name in reversed(inner.inputs):
        if (entry := evidence.entry(naming.ACTIVATION, name)) is not None:
            return _Saturated(inner.index, entry, name, inner.source, f"goes into {what}")
    return None


def _and_around(evidence: RuleEvidence, path: str | None) -> Iterator[Layer]:
    """Yields the layer at a path and those around it, the innermost first."""
    for _ in range(_DEEPEST):
        if path is None or (layer := evidence.layers.get(path)) is None:
            return
        yield layer
        path = layer.parent


def saturated_activations(evidence: RuleEvidence, thresholds: Thresholds) -> Sequence[Entry]:
    """Returns the activations inside the model that are saturated, in execution order."""
    layers = kernel_layers(evidence)
    last = max((layer.layer.index for layer in layers), default=-1)
    inner = [entry for entry in evidence.of(naming.ACTIVATION) if entry.site.index < last and not entry.site.operation]
    choosing = {name for each in evidence.manifest.saturations if each.noise > _CHOOSES for name in each.names}
    early = _at_limits_early(evidence, layers, inner)
    return [
        entry
        for entry in inner
        if entry.name not in choosing
        and (column(entry, "saturated") > thresholds.saturated
             or entry.name in early
             or (is_softmax(entry) and concentration(entry) > _CONCENTRATED[evidence.is_trained]
                 and not _is_left_by_mask(evidence, entry.site.source)))
    ]  # fmt: skip


def _at_limits_early(
    evidence: RuleEvidence, layers: Sequence[KernelLayer], values: Sequence[Entry]
) -> AbstractSet[str]:
    """Returns the names of the values of tanh at the initialisation of which more is at a limit than usual.

    Kernels of a usual scale leave hardly any elements there. That says nothing of a tanh that a bias or a mask keeps at
    one limit, nor of one that is made of the batch alone.
    """
    if evidence.is_trained:
        return frozenset()
    found = {
        entry.name
        for entry in values
        if entry.site.primitive == "tanh"
        and column(entry, "saturated") > _TANH_AT_START
        and abs(column(entry, "mean")) <= _ONE_SIDED
    }
    return found & behind_kernels(evidence, layers) if found else found


def _is_left_by_mask(evidence: RuleEvidence, source: str | None) -> bool:
    """Returns whether a mask leaves a softmax a single weight in each row, as the reason of a zero gradient says."""
    reasons = (cause.why for cause in evidence.manifest.causes)
    return source is not None and any(why.startswith(_ONE_LEFT) and why.endswith(source) for why in reasons)
