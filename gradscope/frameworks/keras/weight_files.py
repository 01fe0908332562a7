"""Keras' weight files are `.weights.h5`, by itself or inside a `.keras` file of a full model.

A `.keras` file also contains the configuration of the model that it was saved from, of which `keras.saving.load_model`
makes objects, by names of modules and classes that the file chooses. It is not read: the weights go into the model that
the user's own code has built, by `Model.load_weights`, which reads arrays and nothing else.

Each layer has a path in a file, by the attributes and containers that lead to it, and its variables are numbered:
`layers/dense_1/vars/0`. The optimizer of a compiled model and the states of random generators are not weights. A weight
outside the file is not read either, although HDF5 allows an array or a link to name another file.
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

from gradscope.frameworks.modules.adapter import Described

WEIGHTS: Final = ".weights.h5"
FULL_MODEL: Final = ".keras"

#: The member of a full model's file that contains the weights.
_MEMBER: Final = "model.weights.h5"

#: Components of paths in a file that contain no weights.
_NO_WEIGHTS: Final = frozenset({"optimizer", "seed_generator"})


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredWeight:
    """A `StoredWeight` is a variable in a file, with the file's name of its layer."""

    shape: tuple[int, ...]
    dtype: str
    layer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KerasFormat:
    """A `KerasFormat` reads a file of weights into a model."""

    model: Any
    checkpoint: Path
    exact: bool = False
    leads: bool = False
    without_state: int = 0

    @property
    def built(self) -> bool:
        """True where every layer has its shapes."""
        return self.model.built

    def layouts(self) -> tuple[Mapping[str, Described], Mapping[str, Described]]:
        """Returns the weights that Keras saves of this model, and those in the file, without reading them."""
        # Only Keras knows the paths of a model's weights, so the model is saved to find them.
        saved = _weights(self.checkpoint)
        with tempfile.TemporaryDirectory() as folder:
            own = Path(folder) / f"own{WEIGHTS}"
            self.model.save_weights(own)
            expected = _weights(own)
        layers = {path: weight.layer for path, weight in (saved | expected).items()}  # the model's name wins
        return _labelled(expected, layers), _labelled(saved, layers)

    def hint(self, saved: int) -> str | None:  # noqa: ARG002 - the mismatches have names
        """Returns None: the mismatches say it."""
        return None

    def restore(self, behind: int = 0) -> Any:  # noqa: ARG002 - its weights have names
        """Returns the model itself, with the file's weights."""
        self.model.load_weights(self.checkpoint)
        return self.model


def _weights(path: Path) -> dict[str, StoredWeight]:
    found: dict[str, StoredWeight] = {}

    def note(path: str, item: Any) -> None:
        if _is_inside(item) and _NO_WEIGHTS.isdisjoint(path.split("/")):
            dtype = item.attrs.get("dtype", item.dtype.name)  # HDF5 has no bfloat16, so Keras writes it as an attribute
            layer = str(item.parent.attrs.get("name", ""))
            found[path] = StoredWeight(shape=item.shape, dtype=str(dtype), layer=layer)

    with _bytes(path) as file, h5py.File(file, "r") as weights:
        weights.visititems(note)  # it follows no link out of the file
    return found


def _is_inside(item: Any) -> bool:
    """Returns whether an item is an array whose numbers are in the file itself, and not in one that it names."""
    return isinstance(item, h5py.Dataset) and not (item.external or item.is_virtual)


def _labelled(weights: Mapping[str, StoredWeight], layers: Mapping[str, str]) -> dict[str, StoredWeight]:
    """Returns weights by path, followed by the layer's name where that is another name."""
    return {
        f"{path} ({layers[path]})" if layers[path] not in {"", *path.split("/")} else path: weight
        for path, weight in weights.items()
    }


@contextlib.contextmanager
def _bytes(path: Path) -> Generator[IO[bytes]]:
    if path.name.endswith(WEIGHTS):
        with path.open("rb") as file:
            yield file
    else:
        with zipfile.ZipFile(path) as archive, archive.open(_MEMBER) as member:
            yield member
