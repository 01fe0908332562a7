"""Sinks: what takes the records of a run, whether into a file or into memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Protocol, TypedDict, Unpack

from gradscope.dump.manifest import Cause, Entry, Examples, Layer, Ledger, Manifest, Origin
from gradscope.dump.record import Json, Record


class ManifestFields(TypedDict, total=False):
    """What a caller says about a dump as a whole: the fields of `Manifest` beside its entries."""

    layers: tuple[Layer, ...]
    ledger: Ledger
    causes: tuple[Cause, ...]
    loss: float | None
    tier: Literal["core", "full"]
    provenance: Mapping[str, Json]
    self_check: Mapping[str, Json] | None
    examples: Examples | None
    timings: Mapping[str, float]
    origins: tuple[Origin, ...]
    complete: bool
    note: str


class RecordSink(Protocol):
    """Takes records one by one, and at the end what is to be said of them as a whole."""

    def require_space(self, size_bytes: int) -> None:
        """Refuse to go on where there is no room for that much.

        Raises:
            MachineError: There is less.
        """
        ...

    def add(self, record: Record) -> Entry:
        """Take a record."""
        ...

    def commit(self, **fields: Unpack[ManifestFields]) -> Manifest:
        """Make a dump of the records taken."""
        ...

    def commit_incomplete(self, error: str, **fields: Unpack[ManifestFields]) -> Path | None:
        """Save what was taken until a run failed; returns where, None where nothing is saved."""
        ...
