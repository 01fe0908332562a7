"""Rows of a table are told for which one program alone has a gradient, and only where all others agree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gradscope.comparison.compare_dumps import judged, paired
from gradscope.comparison.diagnosis.likely.gradients.stacked_gradients import other_rows
from gradscope.comparison.judging.compare_options import CompareOptions
from gradscope.comparison.judging.limits.noise import DefaultLimits
from gradscope.comparison.pairing.matching import Dumps
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
    one, other = (dump_of({"param/t": TABLE, "param_grad/t": each.astype(dtype)}) for each in (ref, cand))
    dumps = Dumps(ref=one, cand=other)
    pairing = paired(dumps, CompareOptions())
    rows = judged(dumps, pairing.matched, CompareOptions(), DefaultLimits.of_whole(dumps, None))
    match = next(each for each in pairing.matched if each.ref == "param_grad/t")
    assert other_rows(dumps, match, rows[match.ref]).startswith(words)
    assert bool(other_rows(dumps, match, rows[match.ref])) is bool(words)
