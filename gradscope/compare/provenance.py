"""Provenance differences: what two runs did not have in common, the usual culprits on top."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from gradscope.dump.record import Json

#: How fields begin that most often explain a difference, the likeliest first.
_CULPRITS: Final = (
    *("versions", "jax", "python", "backend", "device", "matmul_precision", "x64", "dtype"),
    *("train", "loss", "seed", "batch", "data", "checkpoint", "model", "xla_flags"),
)


def provenance_differences(ref: Mapping[str, Json], cand: Mapping[str, Json]) -> tuple[dict[str, Json], ...]:
    """The fields in which two runs differ.

    Args:
        ref: The reference's provenance; a mapping inside it counts by its own fields, `versions.jax`.
        cand: The candidate's.

    Returns:
        `field`, `ref` and `cand` of each, where a side that lacks the field has no such key; nothing where a file has
        no provenance at all.
    """
    if not ref or not cand:
        return ()
    one, other = dict(_fields(ref)), dict(_fields(cand))
    differing = (name for name in one.keys() | other.keys() if one.get(name) != other.get(name))
    return tuple(_difference(name, one, other) for name in sorted(differing, key=_suspicion))


def _fields(provenance: Mapping[str, Json], prefix: str = "") -> Iterator[tuple[str, Json]]:
    for name, value in provenance.items():
        if isinstance(value, dict):
            yield from _fields(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _suspicion(name: str) -> tuple[int, str]:
    ranks = (rank for rank, culprit in enumerate(_CULPRITS) if name.startswith(culprit))
    return next(ranks, len(_CULPRITS)), name


def _difference(name: str, ref: Mapping[str, Json], cand: Mapping[str, Json]) -> dict[str, Json]:
    sides = {side: found[name] for side, found in (("ref", ref), ("cand", cand)) if found.get(name) is not None}
    return {"field": name, **sides}
