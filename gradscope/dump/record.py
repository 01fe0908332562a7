"""Defines `Record`: one tensor, its statistics and its origin, which a capture writes into a dump.

It also defines `Shard`, the box of a *global* tensor that one process of a run stores: a start index per axis, and a
shape. In the process's file, a shard is an ordinary tensor, named by the global tensor and its start index, such as
`head/kernel@0,512`. A shard that is the complete tensor keeps its name. Across the files of all processes, the shards
of a tensor cover each element exactly once.
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
    """The box of a global tensor that a record holds.

    Attributes:
        of: The whole tensor's name.
        whole: Its shape.
        start: Index of the part's first element along each axis.
    """

    of: str
    whole: tuple[int, ...]
    start: tuple[int, ...]

    def name(self, shape: tuple[int, ...]) -> str:
        """Returns the name of a shard of this shape in the file of its process."""
        return self.of if shape == self.whole else f"{self.of}@{','.join(map(str, self.start))}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessPlace:
    """The index of a process, counted from 0, and the number of processes."""

    index: int
    count: int

    @property
    def file_name(self) -> str:
        """The name of the process's file in the dump's folder."""
        return f"proc-{self.index:05}-of-{self.count:05}.npz"

    @classmethod
    def of_file(cls, name: str) -> ProcessPlace | None:
        """Parses a file's name; returns None where it is not the file of a process."""
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
