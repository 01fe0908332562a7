"""The rules about depth find a gradient, or a signal, that changes by a factor from layer to layer.

A trend is a robust regression (Theil and Sen) of the logarithm of a norm on the position in the chain of layers that
have a kernel. The regression's slope does not depend on the loss's scale or the batch, nor on single layers. The
norm is the l2 norm: unlike the root mean square, it does not change where weights of a sane scale change the width,
and a pooling changes it less.

The steps of a recurrence are layers as any others. Its weights learn from the last steps, whatever comes back from the
first; but what only the first ones show is not learned. A tanh recurrence of 16 units with orthogonal weights, whose
gradient shrinks 5,000 times over 20 steps, was no better than chance at the label of the first step after 1,500 steps
of Adam, and learned it over 10 steps.

What changes the gradient is told of a model as it begins. A kernel of n random weights per output, of a root mean
square r, changes the norm of a gradient by r sqrt(n). Where that is the trend, the kernels are why; where it is 1, what
is between them is.

A gradient that is lost *at once*, between two such layers, is no trend. Small ones are usual, as behind a gate that is
nearly closed. One that neither SGD nor Adam can use is a fault.

References:
    Sen: Estimates of the Regression Coefficient Based on Kendall's Tau, 1968.
    Hochreiter: Untersuchungen zu dynamischen neuronalen Netzen, 1991 (the gradient's exponential change with depth).
"""

from __future__ import annotations

import itertools
import math
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

from gradscope import naming
from gradscope.dump.manifest.manifest import Entry
from gradscope.stats.findings.rule_evidence import RuleEvidence, Suspect, Thresholds, column, suspect
from gradscope.stats.findings.rules.kernels import KernelLayer, kernel_layers

#: The fewest layers that make a trend.
_FEWEST: Final = 6
#: The most points of a regression, whose cost is quadratic.
_MOST: Final = 200
#: The least part of the slope that each half has.
_PART: Final = 0.25
#: The least change from layer to layer, as a logarithm to base 10: a factor of 1.12.
_LEAST_SLOPE: Final = 0.05
#: The part of a gradient below which what one layer hands on of it is lost.
_LOST: Final = 1e-10
#: The part of a parameter below which no gradient changes it in float32: SGD's at a learning rate of 1 is then far too
#: small, and that of Adam, which divides by 1e-8 where a gradient is smaller than that.
_NO_UPDATE: Final = 2.0**-24 * 1e-8
#: What to do about a gradient that is lost at once.
_LOOK_BETWEEN: Final = (
    "look between the two for what multiplies the signal by almost nothing: a gate that is closed, a function at its "
    "limit, a mask of small numbers"
)
#: What to do about the steps of a recurrence, which have one kernel and no blocks.
_KEEP_THE_STATE: Final = (
    "where the answer is in the last steps, leave it; else let a gate keep the state (a bias of 1 or more of an LSTM's "
    "forget gate), draw the recurrent kernel orthogonal, take shorter sequences, or let the loss read all steps"
)
_BOUND_THE_STATE: Final = (
    "draw the recurrent kernel orthogonal, use a cell with gates (LSTM, GRU) or a tanh, clip the gradient's norm, take "
    "shorter sequences, lower the learning rate"
)
#: The part of a trend up to which the kernels have no part in it, and up to the rest of which they are not all of it.
_SHARE: Final = 0.25
#: The part above which the kernels' scale is not what makes a trend: something takes most of it out again.
_MOST_SHARE: Final = 2
#: What is said of functions whose derivative is below 1.
_DERIVATIVES: Final = {
    "logistic": "a sigmoid, whose derivative is at most 0.25",
    "tanh": "tanh, whose derivative is below 1",
}


@dataclass(frozen=True, slots=True)
class Trend:
    """A `Trend` is that of some layers' norms, in decimal logarithms.

    Attributes:
        slope: Change from one layer to the next.
        total: Change from the first to the last layer, by the slope.
        ends: Change of the median from the first third of the layers to the last one.
        steady: Whether each half of the layers has at least a part of the slope, so that it is not a jump at one layer.
    """

    slope: float
    total: float
    ends: float
    steady: bool

    def rises(self, least: float) -> bool:
        """Returns whether it rises by at least so much, by the regression and by the ends."""
        return self.steady and self.slope >= _LEAST_SLOPE and self.total >= least and self.ends >= least / 2


def trend(logarithms: Sequence[float]) -> Trend | None:
    """Returns the trend of a series; None where there are too few points."""
    if len(logarithms) < _FEWEST:
        return None
    slope = _slope(logarithms)
    third, half = len(logarithms) // 3, len(logarithms) // 2
    ends = median(logarithms[-third:]) - median(logarithms[:third])
    halves = (_slope(logarithms[:half]), _slope(logarithms[half:]))
    steady = all(part * slope >= _PART * slope**2 for part in halves)
    return Trend(slope, slope * (len(logarithms) - 1), ends, steady)


def _slope(series: Sequence[float]) -> float:
    """Returns the median of the slopes between all pairs of points."""
    points = list(enumerate(series))[:: -(-len(series) // _MOST)]
    return median((b - a) / (y - x) for (x, a), (y, b) in itertools.combinations(points, 2))


def vanishing(evidence: RuleEvidence, thresholds: Thresholds) -> Iterator[Suspect]:
    """Finds a gradient that shrinks from layer to layer on its way from the loss, or is lost between two of them."""
    layers = _layers(evidence)
    gradients = [gradient for _, gradient in layers]
    found = trend([math.log10(_norm(gradient)) for gradient in gradients])
    if found is not None and found.rises(-math.log10(thresholds.vanishing)):
        worst, steps = min(_first_third(gradients), key=_norm), _are_steps(layers)
        why = _sentence("shrinks", found, len(gradients), steps) + _reason(evidence, layers, found.slope)
        made = suspect("vanishing", worst, why, gradients)
        yield _with_repair(made, _KEEP_THE_STATE) if steps else made
    else:
        yield from _lost_at_once(evidence)


def _lost_at_once(evidence: RuleEvidence) -> Iterator[Suspect]:
    """Finds two layers between which a gradient is lost, so that no kernel before them learns anything."""
    layers = [layer for layer in kernel_layers(evidence) if layer.gradient and 0 < _norm(layer.gradient) < math.inf]
    most = list(itertools.accumulate((_norm(layer.gradient) for layer in layers if layer.gradient), max))
    for first, (last, behind) in enumerate(itertools.pairwise(layers)):
        if last.gradient is None or behind.gradient is None or most[first] >= _LOST * _norm(behind.gradient):
            continue
        before = layers[: first + 1]
        if any(_learns(evidence, kernel) for layer in before for kernel in layer.kernels):
            return
        times = _power_of_ten(math.log10(_norm(behind.gradient)) - math.log10(_norm(last.gradient)))
        why = (
            f"is reached by {times} times less of the gradient than {naming.printable(behind.output.name)} is, the "
            f"next layer with a kernel: no update changes {'a kernel before that' if first else 'its kernel'}"
        )
        found = suspect("vanishing", last.gradient, why, [layer.gradient for layer in before if layer.gradient])
        yield _with_repair(found, _LOOK_BETWEEN)
        return


def _learns(evidence: RuleEvidence, kernel: Entry) -> bool:
    """Returns whether an update changes a kernel; one whose gradient is not known counts as if it did."""
    gradient = evidence.entry(naming.PARAM_GRAD, kernel.name)
    return gradient is None or gradient.absent is not None or _norm(gradient) >= _NO_UPDATE * _norm(kernel)


def exploding(evidence: RuleEvidence, thresholds: Thresholds) -> Iterator[Suspect]:
    """Finds a gradient that grows from layer to layer on its way from the loss."""
    layers = _layers(evidence)
    gradients = [gradient for _, gradient in layers]
    found = trend([-math.log10(_norm(gradient)) for gradient in gradients])
    if found is not None and found.rises(math.log10(thresholds.exploding)):
        worst, steps = max(_first_third(gradients), key=_norm), _are_steps(layers)
        why = _sentence("grows", found, len(gradients), steps) + _reason(evidence, layers, -found.slope)
        made = suspect("exploding", worst, why, gradients)
        yield _with_repair(made, _BOUND_THE_STATE) if steps else made


def _layers(evidence: RuleEvidence) -> list[tuple[KernelLayer, Entry]]:
    """Returns the layers with a kernel in execution order, each with the gradient with respect to its output."""
    found = ((layer, layer.gradient) for layer in kernel_layers(evidence))
    return [(layer, entry) for layer, entry in found if entry is not None and 0 < _norm(entry) < math.inf]


def _are_steps(layers: Sequence[tuple[KernelLayer, Entry]]) -> bool:
    """Returns whether most of some layers are the steps of a recurrence: a trend's worth of them has one kernel."""
    uses = Counter(name for layer, _ in layers for name in layer.whole)
    steps = sum(any(uses[name] >= _FEWEST for name in layer.whole) for layer, _ in layers)
    return 2 * steps > len(layers)


def _with_repair(found: Suspect, repair: str) -> Suspect:
    return replace(found, finding=replace(found.finding, repair=repair))


def _first_third(gradients: Sequence[Entry]) -> Sequence[Entry]:
    return gradients[: max(len(gradients) // 3, 1)]


def _norm(entry: Entry) -> float:
    return column(entry, "l2")


def _sentence(what: str, found: Trend, layers: int, steps: bool) -> str:
    between = "step to step of a recurrence" if steps else "layer to layer"
    return (
        f"is reached by a gradient that {what} by a factor of {10**found.slope:.3g} from {between} on its way "
        f"back: {_power_of_ten(found.total)} times over {layers} layers"
    )


def _reason(evidence: RuleEvidence, layers: Sequence[tuple[KernelLayer, Entry]], slope: float) -> str:
    """Returns what changes a gradient from layer to layer: the kernels, or what is between them; "" where unknown.

    The kernels do where they change the signal likewise: a normalisation takes their scale out of both.

    Args:
        evidence: The manifest. Of a trained model, nothing is known: gradients take the directions of large weights.
        layers: The layers.
        slope: The decimal logarithm by which the gradient is larger at each layer than at the one before.
    """
    gains = [each.expected_gain for each, _ in layers if each.expected_gain]
    if evidence.is_trained or 2 * len(gains) < len(layers):
        return ""
    gain, verb = median(gains), "shrink" if slope > 0 else "grow"
    of_kernels = -math.log10(gain)
    share = of_kernels / slope
    if abs(share) <= _SHARE:
        function = _bounded_function(evidence, len(layers))
        between = "what is between them" + (f", as {function}" if function else "")
        return f"; not by the kernels, which change it by {gain:.3g} each, but by {between}"
    signal = signal_trend([each for each, _ in layers])
    if not 0 < share <= _MOST_SHARE or signal is None or -signal.slope / of_kernels < _SHARE:
        return ""
    each = f"the kernels {verb} it by {max(gain, 1 / gain):.3g} each"
    if share < 1 - _SHARE:
        return f"; {each}, and what is between them by {10 ** abs(slope - of_kernels):.3g}"
    return f"; {each}: their weights have {gain:.3g} times the rms that keeps it"


def _bounded_function(evidence: RuleEvidence, layers: int) -> str:
    """Returns the words for a function whose derivative is below 1, where it is behind most of the layers; else ""."""
    uses = Counter(each.site.primitive for each in evidence.of(naming.ACTIVATION))
    return next((words for name, words in _DERIVATIVES.items() if 2 * uses[name] > layers), "")


def _power_of_ten(exponent: float) -> str:
    """Returns a power of ten with two digits, or with none where float64 does not hold it."""
    return f"{10**exponent:.2g}" if exponent < sys.float_info.max_10_exp else f"1e+{exponent:.0f}"


def signal_trend(layers: Sequence[KernelLayer]) -> Trend | None:
    """Returns the trend of the root mean square of the layers' outputs."""
    outputs = [column(layer.output, "rms") for layer in layers]
    return trend([math.log10(rms) for rms in outputs if 0 < rms < math.inf])
