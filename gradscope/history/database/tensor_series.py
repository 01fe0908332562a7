"""The statistics of many tensors over time are rows of a few arrays; those of one are made when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

#: The column with the number of a row's tensor.
_TENSOR = "tensor"


class TensorSeries(Mapping[int, Mapping[str, np.ndarray]]):
    """`TensorSeries` are statistics over time by the tensor's number: by column an array, and `step`.

    Args:
        columns: The columns, with `step` and `tensor` among them, sorted by tensor; rows without one are left out.
    """

    def __init__(self, columns: Mapping[str, np.ndarray]) -> None:
        known = np.count_nonzero(~np.isnan(columns[_TENSOR]))  # NaN, which is sorted first, stands for a missing number
        first = len(columns[_TENSOR]) - known
        self._columns = {name: values[first:] for name, values in columns.items() if name != _TENSOR}
        numbers, starts = np.unique(columns[_TENSOR][first:], return_index=True)
        self._numbers = numbers.astype(np.int64)
        self._bounds = np.append(starts, known)

    def __getitem__(self, number: int) -> Mapping[str, np.ndarray]:
        at = int(self._numbers.searchsorted(number))
        if at == len(self._numbers) or self._numbers[at] != number:
            raise KeyError(number)
        start, end = self._bounds[at : at + 2]
        return {name: values[start:end] for name, values in self._columns.items()}

    def __iter__(self) -> Iterator[int]:
        return iter(self._numbers.tolist())

    def __len__(self) -> int:
        return len(self._numbers)
