"""The rules that also read the structure of the model: layers, parameters, the ledger and the self-check."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from gradscope import naming
from gradscope.dump.manifest.manifest import Entry, Layer
from gradscope.stats.columns import is_all_zero
from gradscope.stats.findings.rule_evidence import Finding, RuleEvidence, Thresholds, column, finding


def zero_gradient(evidence: RuleEvidence, _: Thresholds) -> Iterator[Finding]:
    """Finds gradients that are exactly zero, or absent because the loss does not depend on the value."""
    reached = {entry.site.layer for entry in evidence.gradients if entry.absent is None}
    for entry in evidence.gradients:
        # A side output without a gradient, such as the running mean of a normalisation, is normal where another output
        # of the layer has one.
        side_output = entry.family == naming.ACTIVATION_GRAD and entry.site.layer in reached
        if entry.absent == "disconnected" and not side_output:
            yield finding("zero-grad", entry, f"has no gradient: {_ledger_detail(evidence, entry)}")
        elif is_all_zero(entry.stats):
            yield finding("zero-grad", entry, f"is exactly zero: {_cause_of_zeros(evidence, entry)}")


def _ledger_detail(evidence: RuleEvidence, entry: Entry) -> str:
    known = evidence.detail(entry)
    return (
        naming.printable(known) if known else "the loss does not depend on it (disconnected, or behind stop_gradient)"
    )


def _cause_of_zeros(evidence: RuleEvidence, entry: Entry) -> str:
    known = evidence.cause(entry)
    if known is not None:
        return naming.printable(known)
    layers = {layer.path: layer for layer in evidence.manifest.layers}
    layer = layers.get(entry.site.layer or "")
    for name in (entry.name, *(layer.outputs if layer else ())):
        activation = evidence.entry(naming.ACTIVATION, name)
        if activation is not None and column(activation, "dead") == 1:
            return f"every unit of {naming.printable(name)} is dead"
    return "cause not determined"


def unused_parameter(evidence: RuleEvidence, _: Thresholds) -> Iterator[Finding]:
    """Finds parameters that the loss does not depend on, or that no layer uses and no gradient reaches."""
    used = {name for layer in evidence.manifest.layers for name in layer.params}
    for entry in evidence.entries:
        if entry.family != naming.PARAM:
            continue
        gradient = evidence.entry(naming.PARAM_GRAD, entry.name)
        if gradient is not None and gradient.absent == "disconnected":
            known = evidence.detail(gradient)
            why = "does not reach the loss" + (f": {naming.printable(known)}" if known else "")
            yield finding("unused-param", entry, why)
        elif used and entry.name not in used and (gradient is None or is_all_zero(gradient.stats)):
            yield finding("unused-param", entry, "is used by no layer")


def initialisation(evidence: RuleEvidence, thresholds: Thresholds) -> Iterator[Finding]:
    """Finds consecutive leaf layers whose outputs have very different standard deviations."""
    outputs = list(_leaf_outputs(evidence))
    for before, after in pairwise(outputs):
        small, large = sorted((column(before, "std"), column(after, "std")))
        if large > thresholds.init * small:
            stds = f"{column(before, 'std'):.3g} to {column(after, 'std'):.3g}"
            limit = f"by more than a factor of {thresholds.init:.3g}"
            yield finding("init", after, f"changes the std from {stds} after {naming.printable(before.name)}, {limit}")


def _leaf_outputs(evidence: RuleEvidence) -> Iterator[Entry]:
    """Yields the first output of each layer without sub-layers, in execution order, unless its deviation is zero."""
    layers = [layer for layer in evidence.manifest.layers if not layer.operation]
    parents = {layer.parent for layer in layers}
    for layer in sorted(layers, key=_index):
        output = evidence.entry(naming.ACTIVATION, layer.outputs[0]) if layer.outputs else None
        if layer.path not in parents and output is not None and column(output, "std") > 0:
            yield output


def _index(layer: Layer) -> int:
    return layer.index


def self_check(evidence: RuleEvidence, _: Thresholds) -> Iterator[Finding]:
    """Finds parameters whose gradient in the instrumented program differs from the plain one by more than rounding."""
    names = (evidence.manifest.self_check or {}).get("beyond_rounding")
    for name in names if isinstance(names, list) else ():
        entry = evidence.entry(naming.PARAM_GRAD, str(name))
        why = "differs from the gradient of the plain program by more than rounding"
        if entry is not None:
            yield finding("self-check", entry, why)
        else:
            yield Finding(
                rule="self-check", name=str(name), family=naming.PARAM_GRAD, why=why, source=None, iteration=()
            )
