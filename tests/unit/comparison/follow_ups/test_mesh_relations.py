"""Each relation is found in values that NumPy makes with it, and none in values that are right or arbitrary."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from gradscope.comparison.follow_ups.mesh_fault import FAULTS, KINDS
from gradscope.comparison.follow_ups.mesh_relations import Relation, relation_of
from gradscope.comparison.follow_ups.mesh_values import AxisValues

_random = np.random.default_rng(1)
WHOLE = _random.normal(size=(16, 6))
SLICES = np.split(WHOLE, 4)
KEPT = _random.random(size=(2, 16, 6)) < 0.7


def relation(several: Sequence[np.ndarray], *, whole: np.ndarray = WHOLE, sliced: int | None = 0) -> Relation | None:
    one = [whole] * len(several) if sliced is None else np.split(whole, len(several), sliced)
    return relation_of(AxisValues(axis="data", sliced=sliced, one=one, several=several, whole=whole))


def kind(several: Sequence[np.ndarray], *, whole: np.ndarray = WHOLE, sliced: int | None = 0) -> str:
    found = relation(several, whole=whole, sliced=sliced)
    return "" if found is None else found.kind


def test_what_is_right_or_arbitrary_has_none() -> None:
    noise = [_random.normal(size=each.shape) for each in SLICES]
    assert [kind(SLICES), kind(noise)] == ["", ""]
    assert [kind([WHOLE] * 4, sliced=None), kind([noise[0]] * 4, whole=noise[1], sliced=None)] == ["", ""]
    assert kind([np.full_like(each, np.nan) for each in SLICES]) == ""
    assert kind([0 * each for each in SLICES], whole=0 * WHOLE) == ""


def test_terms_of_a_sum_with_a_bias_on_each() -> None:
    terms = [_random.normal(size=WHOLE.shape) for _ in range(3)]
    bias = _random.normal(size=6)
    whole = np.sum(terms, axis=0) + bias
    assert kind([each + bias for each in terms], whole=whole, sliced=None) == "terms"


def test_the_sum_of_all_behind_a_rectifier() -> None:
    gradients, active = _random.normal(size=(4, 4, 6)), _random.random(size=(4, 4, 6)) < 0.8
    one = np.concatenate(gradients * active)
    several = [gradients.sum(axis=0) * each for each in active]
    assert kind(several, whole=one) == "summed"


@pytest.mark.parametrize("rows", [16, 8])
def test_statistics_of_a_part(rows: int) -> None:
    """With two examples a device, any values are a straight line."""
    whole = WHOLE[:rows]
    parts = [(each - each.mean(0)) / each.std(0) for each in np.split(whole, 4)]
    one = (whole - whole.mean(0)) / whole.std(0)
    assert kind(parts, whole=one) == ("statistics" if rows == 16 else "")


def test_a_factor_or_an_offset_that_all_have_is_none_of_statistics() -> None:
    assert kind([0.25 * each for each in SLICES]) == ""
    assert kind([each + np.arange(6) for each in SLICES]) == ""


def test_weights_of_unequal_parts() -> None:
    found = relation([factor * each for factor, each in zip((0.5, 1.0, 2.0, 0.5), SLICES, strict=True)])
    assert found == Relation(kind="weights", detail="0.5, 1, 2, 0.5")


@pytest.mark.parametrize("repeated", [True, False])
def test_another_random_mask(repeated: bool) -> None:
    active = np.maximum(WHOLE, 0)
    masks = [KEPT[1][:4]] * 4 if repeated else np.split(KEPT[1], 4)
    several = [each * mask for each, mask in zip(np.split(active, 4), masks, strict=True)]
    found = relation(several, whole=active * KEPT[0])
    assert found == Relation(kind="zeros", detail=", the same ones on each" if repeated else "")


def test_slices_in_another_order_on_the_devices_and_within_what_each_has() -> None:
    moved = Relation(kind="order", detail=": the first slice is number 3")
    assert relation([*np.roll(SLICES, 1, axis=0)]) == moved
    assert relation([np.roll(WHOLE, 4, axis=0)] * 4, sliced=None) == moved


def test_only_the_first_device() -> None:
    assert kind([SLICES[0], *(_random.normal(size=each.shape) for each in SLICES[1:])]) == "first device"


def test_every_kind_has_words() -> None:
    for words in KINDS.values():
        for text in words:
            text.format(name="`a`", axis="`b`", number="2", detail="c", on="on one device")
    assert all(set("{}").isdisjoint(text) for text in FAULTS.values())
