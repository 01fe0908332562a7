"""These rules judge what weights do to a signal: `init`, and `exploding` where weights grew.

A layer's *gain* is the factor by which its weights change the root mean square of what goes through it. Random weights
of a usual scale (LeCun, Glorot, He) have a gain of 0.5 to 2. A gain beyond the threshold counts where it does harm:
where the signals of the layers behind it have changed with it, or a bounded function behind it is saturated. A
normalisation takes away both.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cached_property
from statistics import median
from typing import Final

from gradscope import naming
from gradscope.dump.manifest.manifest import Entry
from gradscope.dump.manifest.zero_reasons import PRODUCT_OF, factor_in
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
from gradscope.stats.findings.rules.harmless_zeros import HarmlessZeros
from gradscope.stats.findings.rules.kernels import KernelLayer, kernel_layers
from gradscope.stats.findings.rules.saturation_rules import saturated_activations, saturated_functions
from gradscope.stats.findings.rules.trends import signal_trend
from gradscope.stats.findings.rules.window_medians import window_medians

#: How the reason of a zero gradient begins where a product of two signals loses it.
_MIXED: Final = "masked: multiplied by exact zeros in dot_general"
#: The part of a gain's logarithm that has to reach the layers behind.
_REACHES: Final = 0.5
#: The root mean square of an input, or of an answer, above which it is large for layers of a usual scale.
LARGE: Final = 30.0
#: The change of a signal over all layers, as a logarithm to base 10, and the gain of each layer, that count as a trend.
_DEPTH: Final = 3.0
_EACH: Final = 2.5
#: The fewest layers over which the signal grows at once, by that gain in each.
_SEVERAL: Final = 3


def weights(evidence: RuleEvidence, thresholds: Thresholds) -> Iterator[Suspect]:
    """Finds layers whose weights cannot learn, or that change a signal out of all proportion."""
    layers = kernel_layers(evidence)
    saturated = read_by_saturated(evidence, thresholds)
    yield from _without_movement(evidence, layers)
    yield from _without_signal(evidence, layers)
    yield from _all_equal(layers)
    beyond = _Gains(evidence, layers, saturated, thresholds).beyond()
    if not beyond and (_drifts(layers) or (not evidence.is_trained and _grows_at_once(layers))):
        beyond = [layer for layer in layers if layer.gain is not None and not 1 / _EACH < layer.gain < _EACH]
    if beyond:
        yield _out_of_proportion(evidence, beyond)


def _without_movement(evidence: RuleEvidence, layers: Sequence[KernelLayer]) -> Iterator[Suspect]:
    """Finds kernels of zeros that no gradient moves."""
    harmless = HarmlessZeros(evidence)
    still = [
        kernel for layer in layers for kernel in layer.kernels
        if is_zero(kernel) and is_zero(evidence.entry(naming.PARAM_GRAD, kernel.name))
        and not harmless.waits(kernel)
    ]  # fmt: skip
    still += _gains_without_movement(evidence, layers)
    if still:
        still.sort(key=lambda entry: entry.site.index)
        why = "is zero, and so is its gradient: it stays zero, and nothing passes it in either direction"
        yield suspect("init", still[0], why, still, total=True)


def _without_signal(evidence: RuleEvidence, layers: Sequence[KernelLayer]) -> Iterator[Suspect]:
    """Finds kernels of zeros whose product is a factor of another signal, which gets no gradient: queries without keys.

    A layer of zeros that is added to a signal, or scales one, is a branch that starts at zero.
    """
    zeros = {kernel.name: kernel for layer in layers for kernel in layer.kernels if is_zero(kernel)}
    silent = [kernel for kernel in zeros.values() if not is_zero(evidence.entry(naming.PARAM_GRAD, kernel.name))]
    factors = {f"{PRODUCT_OF}{key(kernel)}": kernel.name for kernel in silent}
    lost: dict[str, list[Entry]] = {}
    for cause in evidence.manifest.causes:
        factor = factors.get(factor_in(cause.why)) if cause.why.startswith(_MIXED) else None
        concerned = None if factor is None else evidence.entry(cause.family, cause.name)
        if factor is not None and concerned is not None:
            lost.setdefault(factor, []).append(concerned)
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
    equal: list[Entry] = []
    for layer in layers:
        # Of a pair, a mean and its deviation, the other one tells units apart.
        told_apart = {_part(kernel) for kernel in layer.kernels if not _is_equal(kernel)}
        equal += [kernel for kernel in layer.kernels if _is_equal(kernel) and _part(kernel) not in told_apart]
    if equal:
        why = f"is {column(equal[0], 'mean'):.3g} in every element, so that all units compute and learn the same"
        yield suspect("init", equal[0], why, equal)


def _is_equal(kernel: Entry) -> bool:
    return column(kernel, "rms") > 0 and column(kernel, "std") <= 1e-6 * column(kernel, "rms")


def _part(kernel: Entry) -> tuple[str, tuple[int, ...]]:
    """Returns the part of the model that a kernel is in, and its shape."""
    return kernel.name.rpartition("/")[0], kernel.shape


class _Gains:
    """`_Gains` tells which layers change a signal out of all proportion, by what surrounds them.

    Args:
        evidence: What is known of the dump.
        layers: The layers with a kernel.
        saturated: The names of the values that saturated functions read.
        thresholds: The thresholds of the rules.
    """

    def __init__(
        self,
        evidence: RuleEvidence,
        layers: Sequence[KernelLayer],
        saturated: AbstractSet[str],
        thresholds: Thresholds,
    ) -> None:
        self._layers = layers
        self._saturated = saturated
        self._thresholds = thresholds
        self._all_layers = evidence.manifest.layers
        # What the layers receive, and not what they return, which depends on their own weights.
        self._received = [layer.layer.rms.get("in", 0.0) for layer in layers]
        self._before = list(itertools.accumulate((rms > 0 for rms in self._received), initial=0))

    def beyond(self) -> list[KernelLayer]:
        """Returns the layers whose gain is beyond the threshold, and does harm."""
        return [layer for number, layer in enumerate(self._layers) if self._is_beyond(layer, number)]

    def _is_beyond(self, layer: KernelLayer, number: int) -> bool:
        gain = layer.gain
        if not gain or self._is_usual(gain) or self._is_used_backwards(layer):
            return False
        if gain > 1 and (layer.output.name in self._saturated or self._passes_on(layer)):
            return True
        place = self._before[number + 1]
        if place == self._before[-1]:
            # The scale of the last layer is that of the model's answer; a small one is a usual choice.
            usual = self._thresholds.init * self._medians_of_all[place]
            return gain > 1 and column(layer.output, "rms") > max(LARGE, usual)
        change = self._medians_behind[place] / self._medians_before[place]
        return change > gain**_REACHES if gain > 1 else change < gain**_REACHES

    def _is_usual(self, gain: float) -> bool:
        return 1 / self._thresholds.init <= gain <= self._thresholds.init

    @cached_property
    def _signals(self) -> list[float]:
        return [rms for rms in self._received if rms > 0]

    @cached_property
    def _medians_of_all(self) -> list[float]:
        """The median of the signals before each place."""
        return window_medians(self._signals, len(self._signals))

    @cached_property
    def _medians_before(self) -> list[float]:
        """The median of the signals before each place that are near."""
        return window_medians(self._signals, len(self._layers) // 2 + 1)

    @cached_property
    def _medians_behind(self) -> list[float]:
        """The median of the signals behind each place that are near."""
        return window_medians(self._signals[::-1], len(self._layers) // 2 + 1)[::-1]

    def _is_used_backwards(self, layer: KernelLayer) -> bool:
        """Returns whether an earlier layer has the same kernel, with a usual gain or with an output that nothing needs.

        The derivative of a network inside the loss, as of an energy, uses its kernels backwards: there a sum has as
        many terms as the layer has outputs, for which its weights were not drawn.
        """
        return self._used_forwards.get(layer.kernels[0].name, math.inf) < layer.layer.index

    @cached_property
    def _used_forwards(self) -> Mapping[str, int]:
        """The first layer, by its index, that uses a kernel forwards, by the kernel's name."""
        usual = ((layer.layer.index, layer.kernels[0].name) for layer in self._layers
                 if layer.gain is not None and self._is_usual(layer.gain))  # fmt: skip
        without = ((layer.index, name) for layer in self._all_layers if not layer.outputs for name in layer.params)
        return {name: index for index, name in sorted((*usual, *without), reverse=True)}

    def _passes_on(self, layer: KernelLayer) -> bool:
        """Returns whether a layer without a kernel, such as a residual sum, passes on what is large for this model."""
        return self._last_reader.get(layer.output.name, -1) > layer.layer.index

    @cached_property
    def _last_reader(self) -> Mapping[str, int]:
        """The last layer without a kernel, by its index, that passes on a large signal, by the names that it reads."""
        large = self._thresholds.init * median(column(each.output, "rms") for each in self._layers)
        own = {each.layer.path for each in self._layers}
        readers = (each for each in self._all_layers if each.path not in own and 0 < large < each.rms.get("out", 0.0))
        return {name: index for index, name in sorted((each.index, name) for each in readers for name in each.inputs)}


def read_by_saturated(evidence: RuleEvidence, thresholds: Thresholds) -> AbstractSet[str]:
    """Returns the names of the values that saturated functions read."""
    layers = (evidence.layer_of(each) for each in saturated_activations(evidence, thresholds))
    returning = {layer.path: layer for layer in layers if layer is not None}
    received = {name for layer in returning.values() for name in layer.inputs}
    return received.union(name for inner in saturated_functions(evidence, thresholds) for name in inner.inputs)


def _drifts(layers: Sequence[KernelLayer]) -> bool:
    """Returns whether the signal changes steadily over depth, and the weights of most layers are the reason."""
    gains = [layer.gain for layer in layers if layer.gain]
    found = signal_trend(layers)
    if found is None or len(gains) < len(layers) / 2 or not found.steady or abs(found.total) < _DEPTH:
        return False
    typical = median(gains)
    return typical > _EACH if found.total > 0 else typical < 1 / _EACH


def _grows_at_once(layers: Sequence[KernelLayer]) -> bool:
    """Returns whether every layer before the last multiplies the signal, so that the answer is large.

    There may be too few of them for a trend.
    """
    if len(layers) < _SEVERAL or any((layer.gain or 0.0) < _EACH for layer in layers[:-1]):
        return False
    first, answer = layers[0].layer.rms.get("in", 0.0), column(layers[-1].output, "rms")
    return answer > LARGE * max(first, 1.0)


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
