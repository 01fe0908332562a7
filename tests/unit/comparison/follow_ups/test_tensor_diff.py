"""The difference of one tensor: the worst elements, and along which axis it sits; its report."""

from __future__ import annotations

import json
import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from gradscope.comparison.follow_ups.tensor_diff import element_difference
from gradscope.errors import UsageError
from gradscope.presentation import DifferenceReport, Screen, to_csv, to_json, to_text
from tests.unit.comparison.pairing.test_pairing import dump, foreign, values

HEADS = values(2, 6, 4, 3)


def wrong_head() -> np.ndarray[Any, Any]:
    wrong = HEADS.copy()
    wrong[:, :, 2] += 1 + values(2, 6, 3, seed=1) / 10
    return wrong


def report(cand: np.ndarray[Any, Any]) -> DifferenceReport:
    found = element_difference(dump({"activation/a": HEADS}), dump({"activation/a": cand}), "activation/a")
    return DifferenceReport(ref="a.npz", cand="b.npz", difference=found)


def test_the_worst_elements_have_their_index_and_both_values() -> None:
    wrong = HEADS.copy()
    wrong[1, 5, 0, 2], wrong[0, 0, 3, 1] = 9.0, HEADS[0, 0, 3, 1] + 1
    found = report(wrong).difference.worst
    assert [each.index for each in found] == [(1, 5, 0, 2), (0, 0, 3, 1)]
    assert all((each.ref, each.cand) == (float(HEADS[each.index]), float(wrong[each.index])) for each in found)
    assert found[0].difference == 9.0 - float(HEADS[1, 5, 0, 2])


def test_at_most_ten_are_listed_the_worst_first_and_of_equals_the_first() -> None:
    shifted = np.arange(20, dtype=np.float32)
    found = element_difference(dump({"param/a": shifted}), dump({"param/a": shifted + 1}), "a").worst
    assert [each.index for each in found] == [(position,) for position in range(10)]


def test_error_at_one_index_of_an_axis_is_found_there() -> None:
    found = report(wrong_head()).difference
    head = found.axes[2]
    assert (head.axis, head.size, head.worst, head.share, head.effective) == (2, 4, 2, 1.0, 1.0)
    assert found.axes[1].effective > 5
    assert sum(axis.share for axis in found.axes if axis.axis != 2) < 1.5


def test_an_even_spread_is_as_many_indices_as_there_are() -> None:
    found = element_difference(dump({"param/a": HEADS}), dump({"param/a": HEADS + np.float32(4)}), "a")
    assert [axis.effective for axis in found.axes] == pytest.approx([2, 6, 4, 3], rel=1e-6)


def test_a_nonfinite_element_is_worse_than_any_other() -> None:
    wrong = wrong_head()
    wrong[1, 3, 0, 1] = np.nan
    found = report(wrong).difference
    assert (found.worst[0].index, found.worst[0].difference) == ((1, 3, 0, 1), math.inf)
    assert [axis.worst for axis in found.axes] == [1, 3, 0, 1]


def test_nan_and_infinity_on_both_sides_are_no_difference() -> None:
    tensor = np.array([np.nan, np.inf, -np.inf, 1], np.float32)
    found = element_difference(dump({"param/a": tensor}), dump({"param/a": tensor.copy()}), "a")
    assert (found.worst, found.axes) == ((), ())


@pytest.mark.parametrize(
    "dtype", [ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, np.complex64, np.int32, np.bool_, np.float64]
)
def test_every_kind_of_number_is_subtracted(dtype: Any) -> None:
    one, other = np.array([0, 1, 1], dtype), np.array([0, 0, 1], dtype)
    found = element_difference(dump({"param/a": one}), dump({"param/a": other}), "a")
    assert [(each.index, each.difference) for each in found.worst] == [((1,), 1.0)]


def test_a_counterpart_in_another_layout_is_rearranged() -> None:
    wrong = HEADS[0, :, :, 0].copy()
    wrong[4, 1] += 1
    found = element_difference(
        dump({"param/a/kernel": HEADS[0, :, :, 0]}), foreign({"a.weight": wrong.T}), "param/a/kernel"
    )
    assert found.worst[0].index == (4, 1)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("b", "several tensors have the name 'b'"), ("c", "the reference has no tensor 'c'"),
        ("param/only", "the candidate has no counterpart"), ("param/wide", "the shape is"),
    ],
)  # fmt: skip
def test_a_pair_that_cannot_be_subtracted_is_refused(key: str, message: str) -> None:
    shared = {"param/b": values(3), "param_grad/b": values(3)}
    ref = dump({**shared, "param/only": values(5), "param/wide": values(2, 3)})
    with pytest.raises(UsageError, match=message):
        element_difference(ref, dump({**shared, "param/wide": values(4)}), key)


def test_the_report_shows_where_the_error_is() -> None:
    text = to_text(report(wrong_head()), Screen()).plain
    assert text.startswith(
        "activation/a\ndifferent           the error is concentrated at index 2 along axis 2 (100% of it)\n"
    )
    assert all(title in text for title in ("Along each axis", "The worst elements", "Differences by magnitude"))
    assert "the error is spread along every axis" in to_text(report(HEADS + np.float32(1)), Screen()).plain
    assert "every element is equal" in to_text(report(HEADS.copy()), Screen()).plain


def test_the_report_names_the_tensor_that_is_paired() -> None:
    ref, cand = dump({"param/layer_1/kernel": HEADS}), dump({"param/layer.1.weight": HEADS + 1})
    found = element_difference(ref, cand, "param/layer_1/kernel")
    shown = to_text(DifferenceReport(ref="a.npz", cand="b.npz", difference=found), Screen()).plain
    assert shown.endswith("candidate  b.npz: layer.1.weight (paired by path)\n"), shown


def test_json_and_csv_have_the_worst_elements() -> None:
    found = json.loads(to_json(report(wrong_head())))
    assert list(found) == ["schema", "command", "ref", "cand", "rows", "worst", "axes", "octaves"]
    assert len(found["worst"]) == 10
    assert sum(number for _, number in found["octaves"]) == 2 * 6 * 3
    assert to_csv(report(wrong_head())).splitlines()[0] == "name,family,index,ref,cand,difference"


def test_metrics_are_written_as_in_tables_and_the_largest_difference_has_its_place() -> None:
    wrong = HEADS.copy()
    wrong[1, 5, 0, 2] = 9.0
    lines = to_text(report(wrong), Screen()).plain.splitlines()
    shown = {line.split()[0]: line.split(maxsplit=1)[1] for line in lines[2:14] if len(line.split()) > 1}
    assert shown["max_abs"].endswith(f"(at [1,5,0,2], reference {HEADS[1, 5, 0, 2]:.3f}, candidate 9.00)")
    assert (shown["mismatch"], shown["bit_equal"]) == ("0.7%", "no")
    assert "," in shown["ulp_max"]
    assert not {"max_abs_index", "max_abs_ref", "max_abs_cand"} & shown.keys()
