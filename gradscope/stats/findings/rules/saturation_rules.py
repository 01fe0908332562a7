"""The rule `saturated` finds bounded functions at their limits, which pass no gradient."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
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
    suspect,
)
from gradscope.stats.findings.rules.harmless_zeros import GATED
from gradscope.stats.findings.rules.kernels import KernelLayer, behind_kernels, kernel_layers
from gradscope.stats.findings.rules.softmax_values import concentration, is_normalised_again, is_softmax

#: How the reason of a zero gradient begins where a mask leaves a softmax no choice.
_ONE_LEFT: Final = "masked: in each row the mask leaves one entry"
#: Concentration of a softmax above which it is saturated, at the initialisation and later: attention that has learned
#: to copy is at 0.92, one that a rate of 0.3 has driven there at 1.
_CONCENTRATED: Final = (0.6, 0.98)
#: Likewise of a tanh behind a layer with a kernel, at the initialisation, where both limits are reached about as often.
_TANH_AT_START: Final = 0.6
#: The mean of a tanh beyond which one limit is reached much more often than the other.
_ONE_SIDED: Final = 0.3
#: Share of the elements at a limit that a mask drops, from which on it is why they are there.
_MASKED: Final = 0.95
#: Share of noise in the variance of what a function receives above which it chooses by noise, and not by its weights.
_CHOOSES: Final = 0.1


def saturated(evidence: RuleEvidence, thresholds: Thresholds) -> Iterator[Suspect]:
    """Finds bounded functions at their limits: tanh, sigmoid, erf, softmax, and one of them behind itself."""
    values = saturated_activations(evidence, thresholds)
    shown = [_Saturated(entry.site.index, entry, entry.name, entry.site.source, _of_value(entry)) for entry in values]
    places = _Shown(evidence)
    functions = (places.of(inner) for inner in saturated_functions(evidence, thresholds))
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
    """Finds softmaxes and sigmoids whose results are the logits of another one.

    The program says so where gradscope has seen it; of a dump that has no program, as PyTorch's, the gradient does.
    """
    rest = "whose result goes through another one: differences of at most 1 remain of its logits"
    entries: dict[str, Entry] = {}
    at: dict[tuple[str | None, str], list[tuple[Saturation, _Saturated]]] = {}
    places = _Shown(evidence)
    for inner in evidence.manifest.saturations:
        if inner.again and (shown := places.of(inner)) is not None:
            entries[shown.name] = shown.entry
            # A line that several blocks run is one fault, and where no line is known each value is one.
            at.setdefault((inner.source, "" if inner.source else shown.name), []).append((inner, shown))
    for together in at.values():
        inner, shown = together[0]
        named = any(name == shown.name for name in inner.names)
        how = "is a" if named else "computes a" if shown.why.startswith("computes") else "goes into a"
        found = suspect(
            "saturated", shown.entry, f"{how} {inner.function} {rest}", [each.entry for _, each in together]
        )
        finding = replace(found.finding, name=shown.name, source=inner.source)
        yield replace(found, finding=finding, begin=min(inner.index, found.begin))
    for entry in evidence.of(naming.ACTIVATION):
        if entry.name not in entries and is_softmax(entry) and is_normalised_again(evidence, entry):
            yield suspect("saturated", entry, f"is a softmax {rest}")


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


class _Shown:
    """`_Shown` finds the tensors that show bounded functions of a dump, and looks at each layer once."""

    def __init__(self, evidence: RuleEvidence) -> None:
        self._evidence = evidence
        self._returned: dict[str, tuple[str, Entry] | None] = {}

    def of(self, inner: Saturation) -> _Saturated | None:
        """Returns a function with the tensor that shows it: what its layer returns, or else what it receives."""
        what = f"a {inner.function} that {_of_function(inner)}"
        if (own := self._first(inner.names)) is not None:
            return _Saturated(inner.index, own[1], own[0], inner.source, _of_function(inner))
        for layer in self._evidence.with_those_around(inner.layer):
            if (returned := self._of_layer(layer)) is not None:
                return _Saturated(inner.index, returned[1], returned[0], inner.source, f"computes {what}")
        if (received := self._first(reversed(inner.inputs))) is not None:
            return _Saturated(inner.index, received[1], received[0], inner.source, f"goes into {what}")
        return None

    def _of_layer(self, layer: Layer) -> tuple[str, Entry] | None:
        if layer.path not in self._returned:
            # A part of the layer may return the value, too, and is what names it.
            self._returned[layer.path] = self._first((layer.path, *layer.outputs))
        return self._returned[layer.path]

    def _first(self, names: Iterable[str]) -> tuple[str, Entry] | None:
        entries = ((name, self._evidence.entry(naming.ACTIVATION, name)) for name in names)
        return next(((name, entry) for name, entry in entries if entry is not None), None)


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
        and ((column(entry, "saturated") > thresholds.saturated and not _are_dropped(evidence, entry))
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
        and not _are_dropped(evidence, entry)
        and abs(column(entry, "mean")) <= _ONE_SIDED
    }
    return found & behind_kernels(evidence, layers) if found else found


def _are_dropped(evidence: RuleEvidence, entry: Entry) -> bool:
    """Returns whether a mask may drop nearly all elements at a limit: about as many get no gradient.

    Rows of padding are at a limit on purpose. Fewer elements than are at a limit get none behind a maximum of windows,
    and where no element gets one, that has another reason.
    """
    share, gradient = column(entry, "saturated"), evidence.entry(naming.ACTIVATION_GRAD, entry.name)
    if gradient is None or gradient.absent is not None or not column(gradient, "size"):
        return False
    dropped = column(gradient, "zeros") / column(gradient, "size")
    return _MASKED * share <= dropped < 1 and share - dropped <= (1 - dropped) / 2


def _is_left_by_mask(evidence: RuleEvidence, source: str | None) -> bool:
    """Returns whether a mask leaves a softmax a single weight in each row, as the reason of a zero gradient says."""
    return source in evidence.places(_ONE_LEFT)
