"""Rows or columns are told for which one program alone has a gradient, and only where all others agree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradscope as gs
from gradscope.api.reading import Dump
from gradscope.comparison.compare_dumps import judged, paired
from gradscope.comparison.diagnosis.likely.gradients.stacked_gradients import differing_rows, other_rows
from gradscope.comparison.judging.compare_options import CompareOptions
from gradscope.comparison.judging.limits.noise import DefaultLimits
from gradscope.comparison.pairing.matching import Dumps
from tests.support.data import drawn
from tests.support.dumps import dump_of

TABLE = np.random.default_rng(4).normal(size=(6, 5)).astype(np.float32)


def changed(rows: list[int], **others: float) -> Any:
    table = TABLE.copy()
    table[rows] = 0
    for row, value in others.items():
        table[int(row.strip("_")), 0] = value
    return table


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize(
    ("ref", "cand", "words"),
    [
        (changed([2]), TABLE, "differs in the rows [2] alone, for which the reference has none"),
        (TABLE, changed([0, 5]), "differs in the rows [0, 5] alone, for which it has none"),
        (TABLE, changed([0, 1, 2, 5]), "differs in the rows [0, 1, 2, ...] alone, for which it has none"),
        (changed([2]), changed([4]), ""),
        (changed([2]), changed([], _1=3.0), ""),
        (changed([2], _1=np.nan), TABLE, ""),
        (changed([2], _1=np.nan), changed([], _1=np.nan), ""),
        (TABLE, changed([], _1=3.0), ""),
    ],
)
def test_rows_are_told_for_which_one_program_alone_has_a_gradient(ref: Any, cand: Any, words: str, dtype: Any) -> None:
    said = _said(other_rows, TABLE, ref.astype(dtype), cand.astype(dtype))
    assert said.startswith(words)
    assert bool(said) is bool(words)


def _said(tell: Callable[..., str], values: Any, ref: Any, cand: Any, family: str = "param") -> str:
    """Returns what is told of a pair of gradients of a value."""
    one, other = (dump_of({f"{family}/t": values, f"{family}_grad/t": each}) for each in (ref, cand))
    dumps = Dumps(ref=one, cand=other)
    pairing = paired(dumps, CompareOptions())
    rows = judged(dumps, pairing.matched, CompareOptions(), DefaultLimits.of_whole(dumps, None))
    match = next(each for each in pairing.matched if each.ref == f"{family}_grad/t")
    return tell(dumps, match, rows[match.ref])


@pytest.mark.parametrize(
    ("family", "shape", "words"),
    [
        ("param", (3, 12), "differs in the columns 4 to 7 alone, for which it has none"),
        ("param", (12,), "differs in the elements 4 to 7 alone, for which it has none"),
        ("param", (2, 3, 12), "differs in the slices 4 to 7 of axis 2 alone, for which it has none"),
        ("activation", (2, 3, 12), "differs in the slices 4 to 7 of axis 2 alone, for which it has none"),
    ],
)
def test_the_keys_of_a_packed_layer_are_told_that_get_no_gradient(
    family: str, shape: tuple[int, ...], words: str
) -> None:
    values = np.array(drawn(3, *shape))
    cut = values.copy()
    cut[..., 4:8] = 0
    assert _said(other_rows, values, values, cut, family) == words
    assert _said(differing_rows, values, values, values * 1.1, family) == ""


def test_few_rows_that_differ_are_told_and_examples_are_no_rows() -> None:
    other = TABLE.copy()
    other[2] *= 1.5
    assert _said(differing_rows, TABLE, TABLE, other) == "differs in the rows [2] alone"
    assert _said(other_rows, TABLE, TABLE, other) == ""
    assert _said(differing_rows, TABLE, TABLE, other, "activation") == ""
    other[3:5] *= 1.5
    assert _said(differing_rows, TABLE, TABLE, other) == ""


def test_rows_that_differ_by_what_follows_from_a_value_are_not_told() -> None:
    other = TABLE.copy()
    other[2] *= 1.5
    tensors = {"param/t": TABLE, "param_grad/t": TABLE, "activation/a": TABLE}
    alone, behind = ({**tensors, "param_grad/t": other, **more} for more in ({}, {"activation/a": other}))
    assert "`t` differs in the rows [2] alone" in gs.compare(Dump(dump_of(tensors)), Dump(dump_of(alone))).sentence
    assert "alone" not in gs.compare(Dump(dump_of(tensors)), Dump(dump_of(behind))).sentence
