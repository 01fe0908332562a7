"""The rules `nonfinite`, `overflow` and `underflow` find numbers that leave their range."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from gradscope import naming
from gradscope.dump.manifest.manifest import Entry, Manifest
from gradscope.dump.manifest.operation_facts import OF_GIVEN_VALUES, Origin
from gradscope.stats.findings.rule_evidence import (
    DEEPEST,
    Finding,
    RuleEvidence,
    Suspect,
    Thresholds,
    column,
    key,
    suspect,
)  # fmt: skip

#: The largest numbers of the types that overflow in practice. Those of eight bits are scaled to fill their range.
_LARGEST: Final = {"float16": 65504.0}
_NARROW: Final = re.compile(r"the largest (float16|float8\w*)")
_SMALL: Final = ("float16", "float8")
_GIVEN: Final = (naming.INPUT, naming.PARAM, naming.STATE)
_FORWARD: Final = (naming.ACTIVATION, *_GIVEN)
#: Primitives that write an infinity of the user's, as a mask does.
_FILLS: Final = frozenset({"select_n", "scatter", "broadcast_in_dim", "pad", "concatenate", "dynamic_update_slice"})
#: The part of the largest number at which a type is about to overflow.
_CLOSE: Final = 0.5


def is_thrown_away(manifest: Manifest) -> bool:
    """Returns whether NaNs and infinities are known to reach neither the loss nor the gradient of a parameter or input.

    Args:
        manifest: The manifest of a dump in which something is not finite; tensors are not read.
    """
    evidence = RuleEvidence(manifest)
    left_out = any(line.family == naming.PARAM_GRAD and line.reason == "filtered" for line in manifest.ledger.missing)
    known = manifest.loss is not None and evidence.of(naming.PARAM_GRAD) and not left_out
    return bool(known) and not _matters(evidence, evidence.nonfinite)


def nonfinite(evidence: RuleEvidence, _: Thresholds) -> Iterator[Suspect]:
    """Finds where NaNs or infinities began that reach the loss or the gradient of a parameter."""
    broken = [entry for entry in evidence.nonfinite if entry.family != naming.EXAMPLE_GRAD]
    if not _matters(evidence, broken):
        return
    if not any(entry.family in _FORWARD for entry in broken) and not _is_finite(evidence.manifest.loss):
        yield from _of_loss(evidence, broken)
        return
    first = _first(broken)
    at = _Broken(frozenset(map(key, broken)), _first_of(broken, gradient=False), _first_of(broken, gradient=True))
    origins = [_of_origin(evidence, origin, at) for origin in evidence.manifest.origins]
    # The search names where a NaN began. Where an infinity was there before, that is the cause, unless it was written
    # there on purpose.
    if origins and (first.family not in _FORWARD or first.site.primitive in _FILLS or _is_at(evidence, origins, first)):
        yield from origins
    else:
        found = suspect(_rule(first), first, f"has {_counts(first)}: {_birth(first)}", broken, total=True)
        repair = OF_GIVEN_VALUES if first.family in (*_GIVEN, naming.TENSOR) else ""
        yield replace(found, finding=replace(found.finding, repair=repair))


def _of_loss(evidence: RuleEvidence, broken: Sequence[Entry]) -> Iterator[Suspect]:
    """Finds where a loss got its NaN or infinity that no value of the dump has: behind the last layer, as a rule."""
    values = evidence.of(naming.ACTIVATION) or evidence.of(naming.INPUT, naming.PARAM)
    last = max(values, key=lambda entry: entry.site.index, default=None)
    if last is None:
        return
    what = "value of the dump" if broken else "tensor of the dump"
    if any(entry.family == naming.AUX for entry in broken):
        what = "activation of the dump"
    elif any(naming.is_gradient(entry.family) for entry in broken):
        what = "value of the forward pass"
    # It is not said that the loss is not finite because of it: another part of the loss may have no layer behind it.
    leads = f"is the last value before a loss of {evidence.manifest.loss}, where every {what} is finite"
    for origin in evidence.manifest.origins:
        why = f"{leads}: {naming.printable(origin.name)} {origin.why}"
        found = suspect("nonfinite", last, why, broken, total=True)
        yield replace(found, finding=replace(found.finding, source=origin.source, iteration=origin.iteration))
    if not evidence.manifest.origins:
        yield suspect("nonfinite", last, leads, broken, total=True)


def _is_finite(loss: float | None) -> bool:
    return loss is None or abs(loss) < math.inf


def _birth(first: Entry) -> str:
    """Returns what is first not finite in a run: a value, with the operation that made it, or a gradient."""
    if naming.is_gradient(first.family):
        return "it is the first gradient that is not finite"
    if first.family in _GIVEN:
        return "it was not finite before anything was computed"
    if first.family == naming.TENSOR:
        return "the file does not say what made it"
    made = "" if first.site.primitive is None else f", the result of {first.site.primitive}"
    return f"it is the first captured value that is not finite{made}"


def _is_at(evidence: RuleEvidence, origins: Sequence[Suspect], first: Entry) -> bool:
    if first.family in _GIVEN:  # no operation has begun before it
        return any(naming.split_key(origin.name)[0] in _GIVEN for origin in evidence.manifest.origins)
    around = {layer.path for layer in evidence.with_those_around(first.site.layer)} - {first.name}
    return any(origin.begin <= first.site.index or _is_in_layer_of(first, origin.finding, around) for origin in origins)


def _is_in_layer_of(first: Entry, origin: Finding, around: Collection[str]) -> bool:
    """Returns whether an origin is in one of the layers around the first tensor, whose own output comes later."""
    # The first NaN of a run is no later than one that a tensor has; an infinity may have been there before.
    is_around = origin.name in around or first.name.startswith(f"{origin.name}/")
    return (
        is_around
        and origin.family == first.family == naming.ACTIVATION
        and column(first, "nan") > 0 == column(first, "inf")
    )


def _rule(first: Entry) -> str:
    return "overflow" if first.dtype.startswith(_SMALL) and column(first, "inf") > 0 else "nonfinite"


def _matters(evidence: RuleEvidence, broken: Sequence[Entry]) -> bool:
    """Returns whether NaNs or infinities reach the loss or the gradient of a parameter, as far as that is known."""
    loss = evidence.manifest.loss
    if not _is_finite(loss):
        return True
    if not broken:
        return False
    if any(entry.family in (naming.PARAM, naming.PARAM_GRAD, naming.INPUT_GRAD) for entry in broken):
        return True
    # Without a loss and gradients, any is reported: what it reaches is not known.
    return loss is None and not evidence.of(naming.PARAM_GRAD)


def _first(broken: Sequence[Entry]) -> Entry:
    """Returns the tensor that was computed first."""
    forward = [entry for entry in broken if entry.family in _FORWARD]
    # The backward pass runs in reverse execution order, so the first computed gradient is the last in `broken`.
    backward = [entry for entry in broken if entry.family == naming.ACTIVATION_GRAD] or list(broken)
    return forward[0] if forward else backward[-1]


def _counts(entry: Entry) -> str:
    return f"{column(entry, 'nan'):.0f} NaN and {column(entry, 'inf'):.0f} Inf of {column(entry, 'size'):.0f} elements"


class _Broken(NamedTuple):
    """A run's `_Broken` tensors have keys, and a first one, in the forward and in the backward pass."""

    keys: frozenset[str]
    forward: Entry
    backward: Entry


def _first_of(broken: Sequence[Entry], *, gradient: bool) -> Entry:
    return _first([entry for entry in broken if naming.is_gradient(entry.family) == gradient] or broken)


def _of_origin(evidence: RuleEvidence, origin: Origin, broken: _Broken) -> Suspect:
    """Returns the finding at the tensor around an origin, which is an operation."""
    gradient = origin.direction == "backward"
    families = (naming.ACTIVATION_GRAD, naming.ACTIVATION) if gradient else _FORWARD
    paths = [origin.name, *_with_those_around(evidence, origin.layer or origin.name)]
    keys = [naming.split_key(origin.name), *((family, path) for path in paths for family in families)]
    first = broken.backward if gradient else broken.forward
    place = next((entry for at in keys if (entry := evidence.entry(*at)) is not None), first)
    around, _, last = origin.name.rpartition("/")
    inside = around if f" of the {last}" in origin.why else origin.name  # an iteration is told with its loop
    named = origin.name == key(place) or f"{origin.name}/".startswith(f"{place.name}/") or not inside
    found = Finding(
        rule="overflow" if _NARROW.search(origin.why) else _rule(first),
        name=place.name,
        family=place.family,
        why=origin.why if named else f"{origin.why}, in {naming.printable(inside)}",
        source=origin.source,
        iteration=origin.iteration,
        tensors=len(broken.keys),
    )
    begin = place.site.index if place.family in (naming.ACTIVATION, naming.ACTIVATION_GRAD) else 0
    return Suspect(finding=found, keys=broken.keys, begin=begin, total=True)


def _with_those_around(evidence: RuleEvidence, path: str) -> Iterator[str]:
    """Yields a path and those around it, the innermost first, and then the layers around it of any name."""
    innermost = path
    for _ in range(DEEPEST):
        if not path:
            break
        yield path
        path = path.rpartition("/")[0]
    yield from (layer.path for layer in evidence.with_those_around(innermost))


def overflow(evidence: RuleEvidence, _: Thresholds) -> Iterator[Suspect]:
    """Finds tensors whose largest element is close to the largest number of a narrow type."""
    close = [
        entry for entry in evidence.of(naming.ACTIVATION, naming.ACTIVATION_GRAD, naming.PARAM_GRAD)
        if entry.dtype in _LARGEST and column(entry, "amax") > _CLOSE * _LARGEST[entry.dtype]
    ]  # fmt: skip
    if close:
        worst = max(close, key=lambda entry: column(entry, "amax"))
        largest = f"{_LARGEST[worst.dtype]:.6g}, the largest {worst.dtype}"
        yield suspect("overflow", worst, f"has an element of {column(worst, 'amax'):.6g}, close to {largest}", close)


def underflow(evidence: RuleEvidence, thresholds: Thresholds) -> Iterator[Suspect]:
    """Finds gradients of a narrow type most of which is below its smallest normal number."""
    low = [
        entry for entry in evidence.of(naming.ACTIVATION_GRAD, naming.PARAM_GRAD)
        if entry.dtype.startswith(_SMALL) and _share_below(evidence, entry) > thresholds.underflow
    ]  # fmt: skip
    if low:
        inner = [entry for entry in low if entry.family == naming.ACTIVATION_GRAD]
        first = (inner or low)[-1]  # the first one in the backward pass
        share = _share_below(evidence, first)
        why = f"is below the smallest normal {first.dtype} in {share:.1%} of its elements: scale the loss up"
        yield suspect("underflow", first, why, low)


def _share_below(evidence: RuleEvidence, entry: Entry) -> float:
    """Returns the share of a gradient that is subnormal, among the elements that are not zero."""
    cause = evidence.cause(entry)
    if cause is not None and cause.why.startswith("underflow"):
        return 1.0
    rest = column(entry, "size") - column(entry, "zeros")
    return column(entry, "subnormal") / rest if rest else 0.0
