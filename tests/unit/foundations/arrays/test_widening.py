"""Elements of any type as float64, in an array of the shape that they have."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from gradscope.arrays.widening import wide_values


@pytest.mark.parametrize(
    "dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, np.int32]
)
@pytest.mark.parametrize("shape", [(), (6,), (2, 3), (2, 1, 3)])
def test_arrays_of_any_shape_keep_it_and_are_their_own(dtype: Any, shape: tuple[int, ...]) -> None:
    array = np.arange(6 if shape else 1).reshape(shape).astype(dtype)
    wide = wide_values(array.T)
    again = wide_values(array)  # no scratch memory is shared
    assert (wide.dtype, wide.shape) == (np.float64, shape[::-1])
    np.testing.assert_array_equal(wide, array.T.astype(np.float64))
    again += 1
    np.testing.assert_array_equal(wide, array.T.astype(np.float64))
    np.testing.assert_array_equal(array.astype(np.float64), again - 1)
