"""These rules judge what weights do to a signal: `init`, and `exploding` where weights grew or inputs are large.

A layer's *gain* is the factor by which its weights change the root mean square of what goes through it. Random weights
of a usual scale (LeCun, Glorot, He) have a gain of 0.5 to 2. A gain beyond the threshold counts where it does harm:
where the signals of the layers behind it have changed with it, or a bounded function behind it is saturated. A
normalisation takes away both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from statistics import median
from typing import Final

from gradscope import naming
from gradscope.dump.manifest.manifest import Entry
from gradscope.dump.manifest.zero_reasons import PRODUCT_OF
from gradscope.naming.wording import counted
from gradscope.stats.findings.rule_evidence import (
    RuleEvidence,
    Suspect,
    Thresholds,
    column,
    is_zero,
    key,
    suspect,
)  # fmt: skip
from gradscope.stats.findings.rules.gradient_rules import starting_at_zero
from gradscope.stats.findings.rules.kernels import KernelLayer, kernel_layers
from gradscope.stats.findings.rules.trends import signal_trend
from gradscope.stats.findings.rules.unit_rules import saturated_activations, saturated_functions

#: How the reason of a zero gradient begins where a product of two signals loses it.
_MIXED: Final = "masked: multiplied by exact zeros in dot_general"
#: The part of a gain's logarithm that has to reach the layers behind.
_REACHES: Final = 0.5
#: The root mean square of an input, or of an answer, above which it is large for layers of a usual scale.
_LARGE: Final = 30.0
#: The change of a signal over all layers, as a logarithm to base 10, and the gain of each layer, that count as a trend.
_DEPTH: Final = 3.0
_EACH: Final = 2.5


def weights(evidence: RuleEvidence, thresholds: Thresholds) -> Iterator[Suspect]:
    """Finds layers whose weights cannot learn, or that change a signal out of all proportion."""
    layers = kernel_layers(evidence)
    saturated = _read_by_saturated(evidence, thresholds)
    yield from _without_movement(evidence, layers)
    yield from _without_signal(evidence, layers)
    yield from _all_equal(layers)
    beyond = [
        layer for number, layer in enumerate(layers) if _is_beyond(evidence, layers, number, saturated, thresholds)
    ]
    if not beyond and _drifts(layers):
        beyond = [layer for layer in layers if layer.gain is not None and not 1 / _EACH < layer.gain < _EACH]
    if beyond:
        yield _out_of_proportion(evidence, beyond)


def _without_movement(evidence: RuleEvidence, layers: Sequence[KernelLayer]) -> Iterator[Suspect]:
    """Finds kernels of zeros that no gradient moves."""
    still = [
        kernel for layer in layers for kernel in layer.kernels
        if is_zero(kernel) and is_zero(evidence.entry(naming.PARAM_GRAD, kernel.name))
        and not _waits(evidence, kernel)
    ]  # fmt: skip
    still += _gains_without_movement(evidence, layers)
    if still:
        still.sort(key=lambda entry: entry.site.index)
        why = "is zero, and so is its gradient: it stays zero, and nothing passes it in either direction"
        yield suspect("init", still[0], why, still, total=True)


def _waits(evidence: RuleEvidence, kernel: Entry) -> bool:
    """Returns whether a kernel's gradient is zero only because another parameter is, which the next step changes."""
    gradient = evidence.entry(naming.PARAM_GRAD, kernel.name)
    cause = None if gradient is None else evidence.cause(gradient)
    return cause is not None and any(cause.why.endswith(f": {key(param)} is 0") for param in starting_at_zero(evidence))


def _without_signal(evidence: RuleEvidence, layers: Sequence[KernelLayer]) -> Iterator[Suspect]:
    """Finds kernels of zeros whose product is a factor of another signal, which gets no gradient: queries without keys.

    A layer of zeros that is added to a signal, or scales one, is a branch that starts at zero.
    """
    zeros = {kernel.name: kernel for layer in layers for kernel in layer.kernels if is_zero(kernel)}
    silent = [kernel for kernel in zeros.values() if not is_zero(evidence.entry(naming.PARAM_GRAD, kernel.name))]
    lost: dict[str, list[Entry]] = {}
    for kernel in silent:
        ends = f": {PRODUCT_OF}{key(kernel)} is 0"
        for cause in evidence.manifest.causes:
            concerned = evidence.entry(cause.family, cause.name)
            mixed = cause.why.startswith(_MIXED) and cause.why.endswith(ends)
            if mixed and concerned is not None:
                lost.setdefault(kernel.name, []).append(concerned)
    silent = [kernel for kernel in silent if kernel.name in lost]
    if silent:
        first, *others = silent
        closest = max(lost[first.name], key=lambda entry: (entry.family == naming.ACTIVATION_GRAD, entry.site.index))
        alike = f"; {counted(len(others), 'kernel')} more {'is' if len(others) == 1 else 'are'} alike" if others else ""
        why = (
            f"is zero, and so is what its layer returns: {naming.printable(closest.name)}, which that multiplies, "
            f"gets no gradient{alike}"
        )
        gradients = [each for kernel in silent for each in lost[kernel.name]]
        yield suspect("init", first, why, [*silent, *gradients])


def _gains_without_movement(evidence: RuleEvidence, kernel_layers: Sequence[KernelLayer]) -> list[Entry]:
    """Returns the gains of normalisations, zeros that no gradient moves, that return zeros whatever they receive."""
    known = {each.layer.path for each in kernel_layers}
    found: list[Entry] = []
    for layer in evidence.manifest.layers:
        params = [entry for name in layer.params if (entry := evidence.entry(naming.PARAM, name)) is not None]
        gradients = [evidence.entry(naming.PARAM_GRAD, entry.name) for entry in params]
        silent = layer.rms.get("in", 0.0) > 0 and layer.rms.get("out") == 0
        if params and silent and layer.path not in known and all(map(is_zero, (*params, *gradients))):
            found.append(params[0])  # a bias is added behind the gain
    return found


def _all_equal(layers: Sequence[KernelLayer]) -> Iterator[Suspect]:
    """Finds kernels with the same number everywhere."""
    equal = [
        kernel for layer in layers for kernel in layer.kernels
        if _is_equal(kernel) and not any(_is_beside(kernel, other) for other in layer.kernels)
    ]  # fmt: skip
    if equal:
        why = f"is {column(equal[0], 'mean'):.3g} in every element, so that all units compute and learn the same"
        yield suspect("init", equal[0], why, equal)


def _is_equal(kernel: Entry) -> bool:
    return column(kernel, "rms") > 0 and column(kernel, "std") <= 1e-6 * column(kernel, "rms")


def _is_beside(kernel: Entry, other: Entry) -> bool:
    """Returns whether a kernel is one of a pair, of which the other tells units apart: a mean and its deviation."""
    part, _, _ = kernel.name.rpartition("/")
    return other.name.rpartition("/")[0] == part and other.shape == kernel.shape and not _is_equal(other)


def _is_beyond(
    evidence: RuleEvidence,
    layers: Sequence[KernelLayer],
    number: int,
    saturated: AbstractSet[str],
    thresholds: Thresholds,
) -> bool:
    """Returns whether a layer's gain is beyond the threshold, and does harm."""
    gain = layers[number].gain
    if not gain or _is_usual(gain, thresholds) or _is_used_backwards(evidence, layers, layers[number], thresholds):
        return False
    if gain > 1 and layers[number].output.name in saturated:
        return True
    if gain > 1 and _passes_on(evidence, layers, layers[number], thresholds):
        return True
    # What the layers receive, and not what they return, which depends on their own weights.
    received = [layer.layer.rms.get("in", 0.0) for layer in layers]
    before = [rms for rms in received[: number + 1] if rms > 0]
    behind = [rms for rms in received[number + 1 :] if rms > 0]
    if not behind:
        # The scale of the last layer is that of the model's answer; a small one is a usual choice.
        return gain > 1 and column(layers[number].output, "rms") > max(_LARGE, thresholds.init * median(before))
    near = len(layers) // 2 + 1
    change = median(behind[:near]) / median(before[-near:])
    return change > gain**_REACHES if gain > 1 else change < gain**_REACHES


def _is_usual(gain: float, thresholds: Thresholds) -> bool:
    return 1 / thresholds.init <= gain <= thresholds.init


def _is_used_backwards(
    evidence: RuleEvidence, layers: Sequence[KernelLayer], layer: KernelLayer, thresholds: Thresholds
) -> bool:
    """Returns whether an earlier layer has the same kernel, with a usual gain or with an output that nothing needs.

    The derivative of a network inside the loss, as of an energy, uses its kernels backwards: there a sum has as many
    terms as the layer has outputs, for which its weights were not drawn.
    """
    before = (each for each in layers if each.layer.index < layer.layer.index and each.kernels == layer.kernels)
    if any(each.gain is not None and _is_usual(each.gain, thresholds) for each in before):
        return True
    earlier = (each for each in evidence.manifest.layers if each.index < layer.layer.index and not each.outputs)
    return any({kernel.name for kernel in layer.kernels} <= {*each.params} for each in earlier)


def _read_by_saturated(evidence: RuleEvidence, thresholds: Thresholds) -> AbstractSet[str]:
    """Returns the names of the values that saturated functions read."""
    saturated = (evidence.layer_of(each) for each in saturated_activations(evidence, thresholds))
    received = {name for layer in saturated if layer is not None for name in layer.inputs}
    return received.union(name for inner in saturated_functions(evidence, thresholds) for name in inner.inputs)


def _passes_on(
    evidence: RuleEvidence, layers: Sequence[KernelLayer], layer: KernelLayer, thresholds: Thresholds
) -> bool:
    """Returns whether a layer without a kernel, such as a residual sum, passes on what is large for this model."""
    usual = median(column(each.output, "rms") for each in layers)
    own = {each.layer.path for each in layers}
    behind = (each for each in evidence.manifest.layers if each.index > layer.layer.index and each.path not in own)
    readers = (each for each in behind if layer.output.name in each.inputs)
    return any(0 < thresholds.init * usual < reader.rms.get("out", 0.0) for reader in readers)


def _drifts(layers: Sequence[KernelLayer]) -> bool:
    """Returns whether the signal changes steadily over depth, and the weights of most layers are the reason."""
    gains = [layer.gain for layer in layers if layer.gain]
    found = signal_trend(layers)
    if found is None or len(gains) < len(layers) / 2 or not found.steady or abs(found.total) < _DEPTH:
        return False
    typical = median(gains)
    return typical > _EACH if found.total > 0 else typical < 1 / _EACH


def _out_of_proportion(evidence: RuleEvidence, layers: Sequence[KernelLayer]) -> Suspect:
    worst = max(layers, key=lambda layer: max(layer.gain or 1, 1 / (layer.gain or 1)))
    gain = worst.gain or 1.0
    concerned = [entry for layer in layers for entry in (layer.output, *layer.kernels)]
    if evidence.is_trained and gain > 1:
        why = f"multiplies the signal by {gain:.3g}: the weights have grown"
        return suspect("exploding", worst.output, why, concerned)
    others = "" if len(layers) == 1 else f", and {len(layers) - 1} more layers are alike"
    why = f"has weights that multiply the signal by {gain:.3g}, where usual ones do by about 1{others}"
    return suspect("init", worst.output, why, concerned)


def inputs(evidence: RuleEvidence, thresholds: Thresholds) -> Iterator[Suspect]:
    """Finds inputs that are large for the layers that read them, where nothing normalises them."""
    layers = kernel_layers(evidence)
    saturated = _read_by_saturated(evidence, thresholds)
    for layer in layers:
        large = [
            entry for name in layer.layer.inputs
            if (entry := evidence.entry(naming.INPUT, name)) is not None and column(entry, "rms") > _LARGE
        ]  # fmt: skip
        reaches = column(layers[-1].output, "rms") > _LARGE or layer.output.name in saturated
        if large and reaches and column(layer.output, "rms") > _LARGE:
            rms, mean = column(large[0], "rms"), column(large[0], "mean")
            why = (
                f"has an rms of {rms:.3g} (mean {mean:.3g}), which no layer normalises: the signal is large throughout"
            )
            yield suspect("exploding", large[0], why, [each.output for each in layers])
            return
