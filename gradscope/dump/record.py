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

from gradscope.naming import IterationIndex

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

INDEX: Final = "index.json"

_PART: Final = re.compile(r"proc-(\d{5})-of-(\d{5})\.npz")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """A `Shard` is the box of a global tensor that a record holds.

    Attributes:
        of: Name of the global tensor.
        whole: Shape of the global tensor.
        start: Index of the shard's first element along each axis.
    """

    of: str
    whole: tuple[int, ...]
    start: tuple[int, ...]

    def name(self, shape: tuple[int, ...]) -> str:
        """Returns the name of a shard of this shape in the file of its process."""
        return self.of if shape == self.whole else f"{self.of}@{','.join(map(str, self.start))}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A `Process` is that of a distributed run: its index, counted from 0, and the number of processes."""

    index: int
    count: int

    @property
    def file_name(self) -> str:
        """The name of the process's file in the dump's folder."""
        return f"proc-{self.index:05}-of-{self.count:05}.npz"

    @classmethod
    def of_file(cls, name: str) -> Process | None:
        """Parses a file's name; returns None where it is not the file of a process."""
        found = _PART.fullmatch(name)
        return None if found is None else cls(index=int(found[1]), count=int(found[2]))


#: A JSON value. NaN and infinities are the strings "NaN", "Infinity" and "-Infinity" (see `manifest.json_text`).
if TYPE_CHECKING:
    Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
else:
    Json = Any  # an alias that names itself cannot be resolved where annotations are read to decode a dataclass

#: How the detail of a missing gradient ends where all that keeps it away is a `stop_gradient` of the argument itself.
STOPPED: Final = ", applied to the argument itself"

#: How it ends where what is made of the value counts as data behind a `stop_gradient`, as the target of a loss does.
AS_DATA: Final = ", behind which it counts as data"

#: The state of a site's tensor: captured, or the reason why it is absent. `filtered`: the user's options exclude it;
#: `frozen`: the model itself does not differentiate it.
Reason: TypeAlias = Literal[
    "captured",
    "filtered",
    "frozen",
    "non-differentiable",
    "opaque",
    "forward-only",
    "not-executed",
    "disconnected",
    "eliminated",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteFacts:
    """`SiteFacts` state the origin of a tensor in the traced program.

    Attributes:
        index: Execution index: the position of the value's definition in the forward pass. A gradient has the index of
            its value, so that one order applies to both directions.
        source: `file:line` in the user's code, file without its folder, of a parameter the first that reads it; None
            where unknown.
        primitive: The JAX primitive that computed the value; None for parameters and inputs.
        layer: Path of the layer that outputs the value (for a parameter: that uses it); None where there is none.
        iteration: Index per enclosing loop, outermost first; empty outside loops.
        operation: Whether the value is named by the operation that computed it, and not as a layer's output.
        of: For a term (a summand of a gradient), the key of the value whose gradient it is part of; None where that
            value has no name. For a parameter from which a parametrization computes another one, as a weight norm does,
            the key of that one. None for other tensors. A term's source, primitive and layer are those of the operation
            that uses the value.
    """

    index: int
    source: str | None = None
    primitive: str | None = None
    layer: str | None = None
    iteration: IterationIndex = ()
    operation: bool = False
    of: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFacts:
    """`TensorFacts` are the facts about one tensor, present or absent, that a record and its manifest entry share.

    Attributes:
        family: A family of `gradscope.naming`.
        name: Layer or parameter path, unescaped.
        shape: The shape as the model computed it.
        dtype: The logical dtype's name as JAX spells it: `float32`, `bfloat16`, `int4`, `key<fry>`, `float0`.
        stats: The statistics columns that apply (the names of `stats.COLUMNS`), as `TensorStats.to_json` returns them.
        site: The tensor's origin in the traced program.
        alias_of: Key of the record that has the same value under another name; None for a value of its own.
        absent: The reason why there is no tensor (`disconnected`: no gradient of the loss arrives); None otherwise.
        shard: The box of a global tensor that this one is, in the file of one of several processes; None otherwise.
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
    """A `Record` is one tensor with its values.

    Attributes:
        array: The values in a NumPy (or ml_dtypes) array; None in a stats-only dump, for an alias, or where absent.
    """

    array: np.ndarray | None


Base = TypeVar("Base", bound="DataclassInstance")


def fields_of(base: type[Base], value: Base) -> dict[str, Any]:
    """Returns a value's fields of a base class, as keyword arguments for another subclass of it."""
    return {field.name: getattr(value, field.name) for field in fields(base)}
