"""`series_of` reads a statistic of the tensors of one family over the recorded steps of a run."""

from __future__ import annotations

import numpy as np

from gradscope.history.database.tensor_series import TensorSeries
from gradscope.history.history_reader import History


def series_of(history: History, columns: TensorSeries, family: str, column: str) -> dict[str, np.ndarray]:
    """Returns a column of the tensors of a family over the recorded steps, by name.

    Args:
        history: The run's history.
        columns: What `History.columns` returns for names with that of the column among them.
        family: The family.
        column: The statistic.
    """
    named = {number: tensor.name for number, tensor in history.tensors.items() if tensor.family == family}
    return {name: columns[number][column] for number, name in named.items() if number in columns}
