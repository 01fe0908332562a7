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

from gradscope.frameworks.modules.own_format import Described

WEIGHTS: Final = ".weights.h5"
WHOLE: Final = ".keras"

#: Where a whole model's file keeps its weights.
_MEMBER: Final = "model.weights.h5"

#: Parts of places in a file that hold no weights.
_NO_WEIGHTS: Final = frozenset({"optimizer", "seed_generator"})


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredWeight:
    """A variable in a file, and what the file calls its layer."""

    shape: tuple[int, ...]
    dtype: str
    layer: str


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

    def layouts(self) -> tuple[Mapping[str, Described], Mapping[str, Described]]:
        """The weights that Keras saves of this model, who alone knows the places, and those in the file, none read."""
        saved = _weights(self.checkpoint)
        with tempfile.TemporaryDirectory() as folder:
            own = Path(folder) / f"own{WEIGHTS}"
            self.model.save_weights(own)
            expected = _weights(own)
        layers = {place: weight.layer for place, weight in (saved | expected).items()}  # one name for both, the model's
        return _told(expected, layers), _told(saved, layers)

    def restore(self) -> Any:
        """The model itself, with the file's weights."""
        self.model.load_weights(self.checkpoint)
        return self.model


def _weights(path: Path) -> dict[str, StoredWeight]:
    found: dict[str, StoredWeight] = {}

    def note(place: str, item: Any) -> None:
        if _is_inside(item) and _NO_WEIGHTS.isdisjoint(place.split("/")):
            dtype = item.attrs.get("dtype", item.dtype.name)  # HDF5 has no bfloat16, and Keras writes it beside
            layer = str(item.parent.attrs.get("name", ""))
            found[place] = StoredWeight(shape=item.shape, dtype=str(dtype), layer=layer)

    with _bytes(path) as file, h5py.File(file, "r") as weights:
        weights.visititems(note)  # which follows no link out of the file
    return found


def _is_inside(item: Any) -> bool:
    """Whether an item is an array whose numbers lie in the file itself, and not in one that it names."""
    return isinstance(item, h5py.Dataset) and not (item.external or item.is_virtual)


def _told(weights: Mapping[str, StoredWeight], layers: Mapping[str, str]) -> dict[str, StoredWeight]:
    """Weights by place, and by what their layers are called where that is another name."""
    return {
        f"{place} ({layers[place]})" if layers[place] not in {"", *place.split("/")} else place: weight
        for place, weight in weights.items()
    }


@contextlib.contextmanager
def _bytes(path: Path) -> Generator[IO[bytes]]:
    if path.name.endswith(WEIGHTS):
        with path.open("rb") as file:
            yield file
    else:
        with zipfile.ZipFile(path) as archive, archive.open(_MEMBER) as member:
            yield member
