"""The forms of recurrent layers are tried in a bounded number of steps."""

from __future__ import annotations

import numpy as np

from gradscope.comparison.diagnosis.likely.layers.cell_forms import other_forms, usual_form
from gradscope.comparison.diagnosis.likely.layers.recurrent_cells import Cell, RecurrentLayer, Runs

DRAW = np.random.default_rng(2)


def test_cells_are_computed_once_by_each_form_until_it_takes_too_long() -> None:
    cell = Cell(*(DRAW.normal(size=size) / 4 for size in ((4, 3, 2), (4, 3, 3), (4, 3), (4, 3))))
    runs = Runs(RecurrentLayer("LSTM", [[cell]]), DRAW.normal(size=(1 << 13, 1, 2)))
    usual = usual_form("LSTM")
    forms = [usual, usual, usual, *other_forms("LSTM", usual, backwards=False)]
    made = [runs.outputs({(0, 0): form}) is not None for form in forms]
    assert made == [index < 6 for index in range(len(forms))]  # 4 different forms
