"""A record: one tensor's worth of facts on its way from a capture into a dump. Nothing else passes between the two.

Shards: which part of a tensor a process holds, where several processes share the tensors of one run.

A *shard* is a box of a *whole* tensor: where it begins along each axis, and its own shape. In a process's file it is an
ordinary tensor, called by the whole's name and where it begins, `head/kernel@0,512`; one that is all of the whole keeps
its name. The shards of a whole never overlap and leave nothing out, across the files of all processes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar

import numpy as np

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

INDEX: Final = "index.json"

_PART: Final = re.compile(r"proc-(\d{5})-of-(\d{5})\.npz")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """Which part of a tensor a record holds.

    Attributes:
        of: The whole tensor's name.
        whole: Its shape.
        start: Index of the part's first element along each axis.
    """

    of: str
    whole: tuple[int, ...]
    start: tuple[int, ...]

    def name(self, shape: tuple[int, ...]) -> str:
        """What a part of this shape is called in the file of its process."""
        return self.of if shape == self.whole else f"{self.of}@{','.join(map(str, self.start))}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessPlace:
    """Which of how many processes, counted from 0."""

    index: int
    count: int

    @property
    def file_name(self) -> str:
        """The name of its file in the dump's folder."""
        return f"proc-{self.index:05}-of-{self.count:05}.npz"

    @classmethod
    def of_file(cls, name: str) -> ProcessPlace | None:
        """The place that a file's name tells; None for one that is no process's."""
        found = _PART.fullmatch(name)
        return None if found is None else cls(index=int(found[1]), count=int(found[2]))


#: What JSON can say. NaN and infinities are the strings "NaN", "Infinity", "-Infinity" (see `dump.jsontext`).
Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

#: What became of a site's tensor: captured, or why it is not there. `filtered` is the user's own word.
Reason: TypeAlias = Literal[
    "captured",
    "filtered",
    "non-differentiable",
    "opaque",
    "forward-only",
    "not-executed",
    "disconnected",
    "eliminated",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteFacts:
    """Where a tensor comes from.

    Attributes:
        index: Execution index: the position of the value's definition in the forward pass. A gradient carries the
            index of its value, so one order serves both directions.
        source: `file:line` in the user's code, file without its folder; None where unknown.
        primitive: The JAX primitive that made the value; None for parameters and inputs.
        layer: Path of the layer that hands the value on (for a parameter: that uses it); None where there is none.
        iteration: Index per enclosing loop, outermost first; empty outside loops.
        operation: Whether the value is known by the operation that made it, and not as a layer's output.
        of: Key of the value of whose gradient this is a term; None for what is no term, or of a value without a name.
            Source, primitive and layer of a term are those of the operation that uses the value there.
    """

    index: int
    source: str | None = None
    primitive: str | None = None
    layer: str | None = None
    iteration: tuple[int, ...] = ()
    operation: bool = False
    of: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFacts:
    """What is known of one tensor, or why there is none; what a record and a dump's entry have in common.

    Attributes:
        family: A family of `gradscope.naming`.
        name: Layer or parameter path, unescaped.
        shape: The shape as the model computed it.
        dtype: The logical dtype's name as JAX spells it: `float32`, `bfloat16`, `int4`, `key<fry>`, `float0`.
        stats: The statistics columns that apply (the names of `stats.COLUMNS`), as `TensorStats.to_json` returns them.
        site: Where it comes from.
        alias_of: Key of the record that carries the same value under another name; None for a value of its own.
        absent: Why there is no tensor (`disconnected`: the loss does not depend on it); None where there is one.
        shard: Which part it is of a tensor that several processes share; None for a tensor of its own.
    """

    family: str
    name: str
    shape: tuple[int, ...]
    dtype: str
    stats: Mapping[str, Json]
    site: SiteFacts
    alias_of: str | None = None
    absent: Reason | None = None
    shard: Shard | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Record(TensorFacts):
    """One tensor with its values.

    Attributes:
        array: The values in a NumPy (or ml_dtypes) array; None in a stats-only dump, for an alias, or where absent.
    """

    array: np.ndarray | None


Base = TypeVar("Base", bound="DataclassInstance")


def fields_of(base: type[Base], value: Base) -> dict[str, Any]:
    """The fields that a value has of a base class, as arguments for another of its subclasses."""
    return {field.name: getattr(value, field.name) for field in fields(base)}
