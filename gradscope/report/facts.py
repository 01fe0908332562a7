"""The footer of a dump's tables: what is true of the run as a whole, a line each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from gradscope.dump.manifest import Manifest
from gradscope.dump.record import Json
from gradscope.report.numbers import count, number

#: Provenance that a reader of the table wants to see; all of it is in the JSON.
_PROVENANCE: Final = ("backend", "device", "seed", "batch_size", "matmul_precision")


def facts(path: str, manifest: Manifest) -> tuple[tuple[str, str], ...]:
    """Pairs of a label and what there is to say, in the order in which they are read."""
    return tuple((label, text) for label, text in _facts(path, manifest) if text)


def _facts(path: str, manifest: Manifest) -> Iterator[tuple[str, str]]:
    yield "loss", "" if manifest.loss is None else f"{manifest.loss:.6g}"
    counts = manifest.ledger.counts()
    yield "tensors", ", ".join(f"{count(n)} {reason}" for reason, n in counts.items()) if any(counts.values()) else ""
    yield "self-check", "" if manifest.self_check is None else _self_check(manifest.self_check)
    yield "seconds", ", ".join(f"{phase} {number(seconds)}" for phase, seconds in manifest.timings.items())
    yield "run", ", ".join(_provenance(manifest.provenance))
    yield "dump", path
    yield "note", manifest.note
    yield "incomplete", "" if manifest.complete else "the run that wrote this dump did not finish"


def _self_check(found: Mapping[str, Json]) -> str:
    """How the observed gradients compare with those of the plain program."""
    total, equal, largest = found.get("total"), found.get("bit_equal"), found.get("max_rel_l2")
    return f"{equal} of {total} parameter gradients are bit for bit those of the plain program, rel_l2 at most {largest}"


def _provenance(provenance: Mapping[str, Json]) -> Iterator[str]:
    versions = provenance.get("versions")
    if isinstance(versions, dict) and "jax" in versions:
        yield f"jax {versions['jax']}"
    yield from (f"{name} {provenance[name]}" for name in _PROVENANCE if name in provenance)
