"""Differences between two runs other than in their tensors: what was recorded, and how the runs were made.

`extent_differences` compares what the captures recorded, in sentences. `provenance_differences` compares the recorded
versions, devices and options, and lists the fields that most often explain a difference first; `mode_difference` tells
of one of them in a sentence, since much may follow from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.manifest import Manifest
from gradscope.dump.manifest.provenance import SOURCE_LINES
from gradscope.dump.record import Json
from gradscope.naming import (
    ACTIVATION,
    ACTIVATION_GRAD,
    EXAMPLE_GRAD,
    PARAM,
    PARAM_GRAD,
    TENSOR,
    TERM,
    key_of,
    printable,
)
from gradscope.naming.wording import counted, place_behind

#: The field that says whether a model ran in training, and the name that a capture from PyTorch has for it.
_MODE: Final = "train"
_MODE_OF_PYTORCH: Final = "training"

#: The families that options of a capture select; whether there are inputs or state depends on the model.
_REQUESTED: Final = (ACTIVATION, ACTIVATION_GRAD, PARAM, PARAM_GRAD, EXAMPLE_GRAD, TERM)

#: The options that write families which a dump has not by default.
_OPTIONS: Final = {EXAMPLE_GRAD: "--per-example", TERM: "--terms"}

#: Prefixes of the fields that most often explain a difference, the likeliest first.
_LIKELY_CAUSES: Final = (
    *("versions", "jax", "python", "backend", "device", "matmul_precision", "x64", "dtype"),
    *(_MODE, "loss", "seed", "batch", "data", "checkpoint", "model", "xla_flags"),
)


def extent_differences(ref: DumpSource, cand: DumpSource) -> tuple[str, ...]:
    """Returns sentences about what one capture recorded and the other did not; empty where there is no difference.

    Where a NaN or an infinity of one program alone began is among that.
    """
    sides = (("reference", ref, cand), ("candidate", cand, ref))
    return tuple(
        f"the {name} {text}"
        for name, source, other in sides
        for text in (
            *_operations(source.manifest, other.manifest),
            *_without_tensors(source, other),
            *_families(source.manifest, other.manifest),
            *_left_out(source.manifest, other.manifest),
            *_incomplete(source.manifest),
            *_origins(source.manifest, other.manifest),
        )
    )


def _origins(own: Manifest, other: Manifest) -> Iterator[str]:
    known = [each for each in own.origins if each.why]
    if known and not other.origins:
        place = f"{printable(known[0].name)}{place_behind(known[0].why, known[0].source)}"
        yield f"states where a NaN or an infinity began: {place} {known[0].why}"


def _operations(own: Manifest, other: Manifest) -> Iterator[str]:
    if own.layers and other.layers and _holds_operations(own) and not _holds_operations(other):
        yield "holds every operation, the other layers only"


def _holds_operations(manifest: Manifest) -> bool:
    composites = {layer.parent for layer in manifest.layers}
    return all(layer.primitive is not None for layer in manifest.layers if layer.path not in composites)


def _without_tensors(source: DumpSource, other: DumpSource) -> Iterator[str]:
    if not _holds_tensors(source) and _holds_tensors(other):
        yield "holds statistics and no tensors"


def _holds_tensors(source: DumpSource) -> bool:
    entries = source.manifest.entries
    own = (key_of(entry.family, entry.name) for entry in entries if entry.alias_of is None and entry.absent is None)
    return any(source.has_tensor(key) for key in own)


def _families(own: Manifest, other: Manifest) -> Iterator[str]:
    own_families, other_families = ({entry.family for entry in manifest.entries} for manifest in (own, other))
    lacking = [family for family in _REQUESTED if family in other_families - own_families]
    # All tensors of a foreign file are of one family, which can stand for any other.
    if lacking and TENSOR not in own_families | other_families:
        named = (f"{family} (dump {_OPTIONS[family]})" if family in _OPTIONS else family for family in lacking)
        yield f"holds nothing of {', '.join(named)}"


def _left_out(own: Manifest, other: Manifest) -> Iterator[str]:
    filtered, elsewhere = (manifest.ledger.counts().get("filtered", 0) for manifest in (own, other))
    if filtered > elsewhere:
        yield f"left out {counted(filtered, 'site')} by its selection, the other {elsewhere:,}"


def _incomplete(manifest: Manifest) -> Iterator[str]:
    if not manifest.complete:
        yield f"is incomplete{f': {manifest.note}' if manifest.note else ''}"


def provenance_differences(ref: Mapping[str, Json], cand: Mapping[str, Json]) -> tuple[dict[str, Json], ...]:
    """Returns the fields in which the provenance of two runs differs.

    Args:
        ref: The reference's provenance; the fields of a nested mapping count one by one, such as `versions.jax`.
        cand: The candidate's provenance.

    Returns:
        `field`, `ref` and `cand` of each difference; a run that lacks the field has no such key. Empty where a dump has
        no provenance.
    """
    if not ref or not cand:
        return ()
    one, other = dict(_fields(ref)), dict(_fields(cand))
    differing = (name for name in one.keys() | other.keys() if one.get(name) != other.get(name))
    return tuple(_difference(name, one, other) for name in sorted(differing, key=_rank))


def mode_difference(differences: Iterable[Mapping[str, Json]]) -> str:
    """Returns a sentence, without a full stop, that one model ran in training and the other in evaluation; "" if not.

    Args:
        differences: What `provenance_differences` returned.
    """
    modes = next(((each.get("ref"), each.get("cand")) for each in differences if each["field"] == _MODE), ())
    if not modes or not all(isinstance(each, bool) for each in modes):
        return ""
    ref, cand = ("training" if each else "evaluation" for each in modes)
    return f"The reference ran in {ref} mode, and the candidate in {cand} mode"


def _fields(provenance: Mapping[str, Json], prefix: str = "") -> Iterator[tuple[str, Json]]:
    for name, value in provenance.items():
        if name == SOURCE_LINES:
            continue  # the hash of the model's file says that it differs
        if isinstance(value, dict):
            yield from _fields(value, f"{prefix}{name}.")
        else:
            yield _MODE if name == _MODE_OF_PYTORCH else f"{prefix}{name}", value


def _rank(name: str) -> tuple[int, str]:
    ranks = (rank for rank, prefix in enumerate(_LIKELY_CAUSES) if name.startswith(prefix))
    return next(ranks, len(_LIKELY_CAUSES)), name


def _difference(name: str, ref: Mapping[str, Json], cand: Mapping[str, Json]) -> dict[str, Json]:
    sides = {side: found[name] for side, found in (("ref", ref), ("cand", cand)) if found.get(name) is not None}
    return {"field": name, **sides}
