"""Recurrent layers are read and tried in bounded time and memory."""

from __future__ import annotations

import numpy as np

from gradscope.comparison.diagnosis.likely.layers.cells.forms import other_forms, usual_form
from gradscope.comparison.diagnosis.likely.layers.cells.recurrent_cells import (
    Cell,
    RecurrentLayer,
    Runs,
    recurrent_layer,
)
from gradscope.comparison.diagnosis.refuting.float_tensors import FloatTensors
from gradscope.dump.manifest.manifest import Entry, Layer, Manifest
from gradscope.dump.record import SiteFacts
from gradscope.dump.sources.memory_dump import MemoryDump

DRAW = np.random.default_rng(2)


def test_cells_are_computed_once_by_each_form_until_it_takes_too_long() -> None:
    cell = Cell(*(DRAW.normal(size=size) / 4 for size in ((4, 3, 2), (4, 3, 3), (4, 3), (4, 3))))
    runs = Runs(RecurrentLayer("LSTM", [[cell]]), DRAW.normal(size=(1 << 13, 1, 2)))
    usual = usual_form("LSTM")
    forms = [usual, usual, usual, *other_forms("LSTM", usual, backwards=False)]
    made = [runs.outputs({(0, 0): form}) is not None for form in forms]
    assert made == [index < 6 for index in range(len(forms))]  # 4 different forms


def test_a_file_may_number_its_layers_as_it_likes() -> None:
    """No list of a trillion layers is made, nor a number of so many digits that Python refuses it."""
    for number in ("0", "10" * 6, "9" * 5000):
        names = [f"rnn/{kind}_l{number}" for kind in ("weight_ih", "weight_hh")]
        entries = tuple(
            Entry(family="param", name=name, shape=(3, 3), dtype="float32", stats={}, site=SiteFacts(index=0))
            for name in names
        )
        values = {f"param/{name}": np.ones((3, 3), np.float32) for name in names}
        tensors = FloatTensors(MemoryDump(Manifest(entries=entries), values))
        found = recurrent_layer(Layer(path="rnn", index=0, outputs=("rnn",), params=tuple(names)), tensors)
        assert (found is not None) is (number == "0")
