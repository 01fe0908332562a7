"""A disk spill stores arrays on disk between the runs of a segmented loss, so that they take no memory.

The file has no name in any folder, so that it is gone when the process ends, however that ends.
"""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from gradscope.errors import MachineError

#: The alignment, in bytes, of an array that a program on the host reads where it is; JAX copies others.
_ALIGNMENT: Final = 64


class _StoredArray(NamedTuple):
    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class DiskSpill:
    """A `DiskSpill` stores arrays by name in a temporary file.

    Args:
        folder: A folder on the disk that is used; None for the system's folder of temporary files.
    """

    def __init__(self, folder: Path | None) -> None:
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 - closed by `__exit__`
        self._stored: dict[Any, _StoredArray] = {}
        self._keys: dict[Any, Any] = {}
        self._size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def put(self, name: Any, array: Any) -> None:
        """Writes an array to the file.

        Args:
            name: The name.
            array: The array.

        Raises:
            MachineError: The disk is full.
        """
        if jnp.issubdtype(array.dtype, jax.dtypes.extended):
            self._keys[name] = array  # typed PRNG keys are few and small, and NumPy has no dtype for them
            return
        host = np.asarray(array, order="C")
        try:
            self._file.seek(self._size)
            left = host.reshape(-1).view(np.uint8).data
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            raise MachineError(
                f"the arrays kept between runs do not fit on the disk: {error.strerror}", hint="free some space"
            ) from error
        self._stored[name] = _StoredArray(self._size, host.shape, host.dtype)
        self._size += host.nbytes

    def get(self, name: Any) -> Any:
        """Returns an array that was stored, as a JAX array."""
        if name in self._keys:
            return self._keys[name]
        stored = self._stored[name]
        size = math.prod(stored.shape) * stored.dtype.itemsize
        room = np.empty(size + _ALIGNMENT, np.uint8)
        aligned = room[-room.ctypes.data % _ALIGNMENT :][:size]
        self._file.seek(stored.offset)
        left = aligned.data
        while left:
            left = left[self._file.readinto(left) :]
        return jax.device_put(aligned.view(stored.dtype).reshape(stored.shape))

    def __contains__(self, name: Any) -> bool:
        return name in self._keys or name in self._stored
