"""A model is three functions and their provenance."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

#: Longest stem of a default file name: with four bytes a character, a suffix still fits within the usual 255 bytes.
_LONGEST_SLUG: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """A `Restored` is what a framework has read from a checkpoint in its own format.

    Attributes:
        value: The module, or its variables.
        notes: Sentences about what was taken of the file.
    """

    value: Any
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A `Model` is a model in Flax style; making one runs none of its functions.

    Attributes:
        name: Its name in messages: `resnet50`, `mymodel`, `resnet50.ResNet(depth=18)`.
        init: `init(key) -> variables`.
        batch: `batch(key, size) -> batch`, a pytree whose leading axis is the example.
        loss: `loss(variables, batch) -> scalar` or `-> (scalar, aux)`.
        source: Absolute path of its file; None where it has none. Only the file's name may leave the machine.
        file_sha256: SHA-256 of that file as it was loaded; None where it has none.
        initialised: Whether `init` only returns values that exist already.
        restored: Sentences about the checkpoint that they come from, which the user named; None where there is none.
        optimizer: `optimizer() -> a gradient transformation of optax`; None where the model states none.
        data: A real batch, where it was read to find the module's inputs.
        choices: Sentences that state the reason of each choice, for `--verbose`.
        counted: What its loss counts, in words, once it is traced; None where its own code says that.
        restore: Returns the variables of a checkpoint that only the framework of the module can read which `init`
            returned, once it was called; None for any other file.
    """

    name: str
    init: Callable[[Any], Any]
    batch: Callable[[Any, int], Any]
    loss: Callable[[Any, Any], Any]
    source: Path | None = None
    file_sha256: str | None = None
    initialised: bool = False
    restored: tuple[str, ...] | None = None
    optimizer: Callable[[], Any] | None = None
    data: Mapping[str, np.ndarray] | None = None
    choices: tuple[str, ...] = ()
    counted: Callable[[], str | None] = lambda: None
    restore: Callable[[Path], Restored | None] = lambda _: None

    @classmethod
    def of_values(cls, name: str, loss: Callable[[Any, Any], Any], variables: Any, batch: Any) -> Model:
        """Returns the model whose variables and batch exist: its `init` and `batch` return them, whatever the key."""
        return cls(name=name, init=lambda _key: variables, batch=lambda _key, _size: batch, loss=loss, initialised=True)

    @property
    def slug(self) -> str:
        """The name as a file name without suffix: characters that a shell or file system may reject become hyphens."""
        return re.sub(r"[^\w.=]+", "-", self.name)[:_LONGEST_SLUG].strip("-.") or "model"
