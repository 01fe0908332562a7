"""Keras' weight files, `.weights.h5` alone or inside a `.keras` file of a whole model, without their code.

A `.keras` file also holds the configuration of the model that it was saved from, which `keras.saving.load_model` makes
objects of, by names of modules and classes that the file chooses. It is not looked at: the weights go into the model
that the user's own code has made, by `Model.load_weights`, which reads arrays and nothing else.

Each layer has a place in a file, by the attributes and containers that lead to it, and its variables are numbered:
`layers/dense_1/vars/0`. The optimizer of a compiled model and the states of random generators are no weights, and no
weight lies outside the file, though HDF5 would let an array or a link name another one.
"""

from __future__ import annotations

import contextlib
import tempfile
import zipfile
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import h5py

from gradscope.frameworks.ownformat import Described

WEIGHTS: Final = ".weights.h5"
WHOLE: Final = ".keras"

#: Where a whole model's file keeps its weights.
_MEMBER: Final = "model.weights.h5"

#: Parts of places in a file that hold no weights.
_NO_WEIGHTS: Final = frozenset({"optimizer", "seed_generator"})


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredWeight:
    """A variable in a file."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KerasFormat:
    """A model and a file of weights."""

    model: Any
    checkpoint: Path
    exact: bool = False

    @property
    def built(self) -> bool:
        """Whether every layer knows its shapes."""
        return self.model.built

    def expected(self) -> Mapping[str, Described]:
        """The weights that Keras saves of this model; told by Keras, who alone knows the places."""
        with tempfile.TemporaryDirectory() as folder:
            own = Path(folder) / f"own{WEIGHTS}"
            self.model.save_weights(own)
            return _weights(own)

    def saved(self) -> Mapping[str, Described]:
        """The weights in the file, none of them read."""
        return _weights(self.checkpoint)

    def restore(self) -> Any:
        """The model itself, with the file's weights."""
        self.model.load_weights(self.checkpoint)
        return self.model


def _weights(path: Path) -> dict[str, StoredWeight]:
    found: dict[str, StoredWeight] = {}

    def note(place: str, item: Any) -> None:
        if _is_inside(item) and _NO_WEIGHTS.isdisjoint(place.split("/")):
            dtype = item.attrs.get("dtype", item.dtype.name)  # HDF5 has no bfloat16, and Keras writes it beside
            found[_told(item, place)] = StoredWeight(shape=item.shape, dtype=str(dtype))

    with _bytes(path) as file, h5py.File(file, "r") as weights:
        weights.visititems(note)  # which follows no link out of the file
    return found


def _is_inside(item: Any) -> bool:
    """Whether an item is an array whose numbers lie in the file itself, and not in one that it names."""
    return isinstance(item, h5py.Dataset) and not (item.external or item.is_virtual)


def _told(item: Any, place: str) -> str:
    """A weight's place, and what its layer is called where that is another name."""
    layer = item.parent.attrs.get("name")
    return place if layer is None or layer in place.split("/") else f"{place} ({layer})"


@contextlib.contextmanager
def _bytes(path: Path) -> Generator[IO[bytes]]:
    if path.name.endswith(WEIGHTS):
        with path.open("rb") as file:
            yield file
    else:
        with zipfile.ZipFile(path) as archive, archive.open(_MEMBER) as member:
            yield member
