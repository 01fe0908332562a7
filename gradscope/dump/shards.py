"""Shards: which part of a tensor a process holds, where several processes share the tensors of one run.

A *shard* is a box of a *whole* tensor: where it begins along each axis, and its own shape. In a process's file it is an
ordinary tensor, called by the whole's name and where it begins, `head/kernel@0,512`; one that is all of the whole keeps
its name. The shards of a whole never overlap and leave nothing out, across the files of all processes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

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
