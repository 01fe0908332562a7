"""Computes the gains of layers, and the ratio `g/w` of each parameter's gradient to the parameter.

The *gain* of a layer is the ratio by which it changes the root mean square of the activations (forward) or of their
gradients (backward). An *accumulated* gain covers all layers from one to the end of the network. In a chain, it is the
product of the layers' gains, which telescopes to one ratio of root mean squares. Where the network branches, the
product is undefined, and the ratio is reported. A `bwd_total` that falls or rises steadily over the layers means
vanishing or exploding gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gradscope import naming
from gradscope.dump.manifest.entries.packed_statistics import numbers_of
from gradscope.dump.manifest.manifest import Layer, Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGains:
    """`LayerGains` are those of one layer, named as their columns in `columns.COLUMNS`, which has the formulas.

    A gain is None where a root mean square is missing or the one divided by is zero.
    """

    fwd_gain: float | None
    bwd_gain: float | None
    fwd_total: float | None
    bwd_total: float | None


def layer_gains(layers: Sequence[Layer]) -> dict[str, LayerGains]:
    """Returns the gains of each layer.

    Args:
        layers: Layers in execution order.

    Returns:
        Gains by layer path, in the same order.
    """
    last = {name: _last(layers, name) for name in ("out", "grad_out")}
    return {
        layer.path: LayerGains(
            fwd_gain=_ratio(layer.rms.get("out"), layer.rms.get("in")),
            bwd_gain=_ratio(layer.rms.get("grad_in"), layer.rms.get("grad_out")),
            fwd_total=_ratio(last["out"], layer.rms.get("in")),
            bwd_total=_ratio(layer.rms.get("grad_in"), last["grad_out"]),
        )
        for layer in layers
    }


def _last(layers: Sequence[Layer], name: str) -> float | None:
    return next((layer.rms[name] for layer in reversed(layers) if name in layer.rms), None)


def _ratio(numerator: float | None, denominator: float | None) -> float | None:
    return None if numerator is None or not denominator else numerator / denominator


def gradient_ratios(manifest: Manifest) -> dict[str, float]:
    """Returns `g/w = l2(gradient) / l2(parameter)` by parameter name, in the order of the entries.

    A parameter is left out where its gradient is absent, or where the parameter is all zeros, as a fresh bias is: the
    ratio is infinite there.
    """
    params, gradients = (_norms(manifest, family) for family in (naming.PARAM, naming.PARAM_GRAD))
    return {
        name: gradient / norm for name, norm in params.items() if norm and (gradient := gradients.get(name)) is not None
    }


def _norms(manifest: Manifest, family: str) -> dict[str, float | None]:
    entries = [each for each in manifest.entries if each.family == family]
    norms = numbers_of([each.stats for each in entries], "l2")
    return {each.name: norm for each, norm in zip(entries, norms, strict=True)}
