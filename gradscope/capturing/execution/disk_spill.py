"""A shelf: arrays put aside on disk, so that they take no memory until they are wanted again.

They lie in a file without a name, which is gone with the process, however that ends.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from gradscope.errors import MachineError


class _Place(NamedTuple):
    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class Shelf:
    """Arrays by name, on disk.

    Args:
        folder: On whose disk; None for where temporary files lie.
    """

    def __init__(self, folder: Path | None) -> None:
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 - closed by `__exit__`
        self._places: dict[Any, _Place] = {}
        self._held: dict[Any, Any] = {}
        self._size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def put(self, name: Any, array: Any) -> None:
        """Put an array aside.

        Raises:
            MachineError: The disk is full.
        """
        if jnp.issubdtype(array.dtype, jax.dtypes.extended):
            self._held[name] = array  # keys: they are few and small, and have no bytes of their own
            return
        host = np.asarray(array, order="C")
        try:
            self._file.seek(self._size)
            left = host.reshape(-1).view(np.uint8).data
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            raise MachineError(
                f"what is kept between runs does not fit on the disk: {error.strerror}", hint="free some space"
            ) from error
        self._places[name] = _Place(self._size, host.shape, host.dtype)
        self._size += host.nbytes

    def get(self, name: Any) -> Any:
        """An array that was put aside, as one of JAX's."""
        if name in self._held:
            return self._held[name]
        place = self._places[name]
        array = np.empty(place.shape, place.dtype)
        self._file.seek(place.offset)
        left = array.reshape(-1).view(np.uint8).data
        while left:
            left = left[self._file.readinto(left) :]
        return jnp.asarray(array)

    def __contains__(self, name: Any) -> bool:
        return name in self._held or name in self._places
