"""Gains of layers: ratios of root mean squares, and their accumulation towards the loss."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gradscope.dump.manifest.manifest import Layer, Manifest
from gradscope.stats import LayerGains, layer_gains, merged_manifest, tensor_stats
from gradscope.stats.power import combined_power, power_of


def chain() -> tuple[Layer, ...]:
    """Three layers in a row: forwards x2, x5, x0.1; backwards x3, x0.5, x4."""
    return (
        Layer(path="a", index=0, rms={"in": 1.0, "out": 2.0, "grad_in": 6.0, "grad_out": 2.0}),
        Layer(path="b", index=1, rms={"in": 2.0, "out": 10.0, "grad_in": 2.0, "grad_out": 4.0}),
        Layer(path="c", index=2, rms={"in": 10.0, "out": 1.0, "grad_in": 4.0, "grad_out": 1.0}),
    )


def test_a_gain_is_output_over_input() -> None:
    gains = layer_gains(chain())
    assert [(each.fwd_gain, each.bwd_gain) for each in gains.values()] == [(2.0, 3.0), (5.0, 0.5), (0.1, 4.0)]


def test_in_a_chain_totals_are_the_products_towards_the_loss() -> None:
    gains = list(layer_gains(chain()).values())
    for position, each in enumerate(gains):
        rest = gains[position:]
        assert each.fwd_total is not None
        assert math.isclose(each.fwd_total, math.prod(g.fwd_gain or 0 for g in rest))
        assert each.bwd_total is not None
        assert math.isclose(each.bwd_total, math.prod(g.bwd_gain or 0 for g in rest))


def test_totals_end_at_the_last_layer_that_has_the_value() -> None:
    gains = layer_gains((*chain(), Layer(path="argmax", index=3, rms={"in": 1.0})))
    assert gains["a"].fwd_total == 1.0
    assert gains["argmax"] == LayerGains(fwd_gain=None, bwd_gain=None, fwd_total=1.0, bwd_total=None)


def test_nothing_is_divided_by_zero_and_a_zero_gradient_has_a_zero_gain() -> None:
    gains = layer_gains((Layer(path="a", index=0, rms={"in": 0.0, "out": 1.0, "grad_in": 0.0, "grad_out": 3.0}),))
    assert gains["a"] == LayerGains(fwd_gain=None, bwd_gain=0.0, fwd_total=None, bwd_total=0.0)


def test_a_model_without_layers_has_no_gains() -> None:
    assert layer_gains(()) == {}


@pytest.mark.parametrize("scale", [1.0, 1e200, 1e-200])
def test_the_root_mean_square_of_several_tensors_is_that_of_all_their_elements(scale: float) -> None:
    parts = [scale * np.arange(1.0, 4.0), scale * np.ones(5)]
    powers = [power_of(tensor_stats(part)) for part in parts]
    together, expected = combined_power(powers), tensor_stats(np.concatenate(parts)).rms
    assert together is not None
    assert (together.rms, together.elements) == (pytest.approx(expected, rel=1e-12, abs=0), 8)
    assert combined_power(powers[:1]) == powers[0]
    calls = (
        Layer(path="a", index=0, rms={"out": each.rms}, elements={"out": each.elements}) for each in powers if each
    )
    merged = merged_manifest((), [Manifest(entries=(), layers=(call,)) for call in calls])
    assert merged.layers[0].rms == {"out": pytest.approx(expected, rel=1e-12, abs=0)}


def test_layers_that_do_not_say_of_how_many_elements_are_merged() -> None:
    calls = (Layer(path="a", index=0, rms={"out": 2.0}), Layer(path="a", index=0, elements={"out": 4}))
    merged = merged_manifest((), [Manifest(entries=(), layers=(call,)) for call in calls])
    assert merged.layers[0].elements == {"out": 4}
