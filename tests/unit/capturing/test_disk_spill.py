"""Arrays come back from the disk as they were, without a second copy of them in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradscope.capturing.execution.disk_spill import DiskSpill


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "bool", "complex64"])
@pytest.mark.parametrize("shape", [(), (0, 3), (1,), (5, 7)])
def test_arrays_come_back(tmp_path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    arrays = [jnp.full(shape, number).astype(dtype) for number in (0, 1, 2)]
    with DiskSpill(tmp_path) as spill:
        for number, array in enumerate(arrays):
            spill.put(number, array)
        for number in (2, 0, 1, 1):
            found = spill.get(number)
            assert isinstance(found, jax.Array)
            assert (found.dtype, found.shape) == (arrays[number].dtype, shape)
            np.testing.assert_array_equal(np.asarray(found), np.asarray(arrays[number]))


def test_keys_come_back(tmp_path: Path) -> None:
    key: Any = jax.random.key(3)
    with DiskSpill(tmp_path) as spill:
        spill.put("key", key)
        assert (jax.random.key_data(spill.get("key")) == jax.random.key_data(key)).all()


def test_what_is_read_is_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a host; a device has memory of its own."""
    made: list[range] = []
    empty = np.empty

    def recording(*arguments: Any, **options: Any) -> Any:
        array = empty(*arguments, **options)
        made.append(range(array.ctypes.data, array.ctypes.data + array.nbytes))
        return array

    with DiskSpill(tmp_path) as spill:
        for size in (1 << 20, 3 << 20):
            spill.put(size, np.ones(size, np.float32))
        monkeypatch.setattr(np, "empty", recording)
        found = [spill.get(size) for size in (1 << 20, 3 << 20)]
    for array in found:
        assert any(array.unsafe_buffer_pointer() in memory for memory in made)
        assert float(array.sum()) == array.size
