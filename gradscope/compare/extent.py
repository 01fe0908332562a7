"""Extent: in what two captures did not look at the same things, whatever they found."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gradscope.compare.wording import counted
from gradscope.dump.manifest import Manifest
from gradscope.dump.source import DumpSource, has_elements
from gradscope.naming import ACTIVATION, ACTIVATION_GRAD, EXAMPLE_GRAD, PARAM, PARAM_GRAD, TENSOR, TERM, key_of

#: What a capture is asked for; whether there are inputs or state is up to the model.
_ASKED_FOR: Final = (ACTIVATION, ACTIVATION_GRAD, PARAM, PARAM_GRAD, EXAMPLE_GRAD, TERM)


def extent_differences(ref: DumpSource, cand: DumpSource) -> tuple[str, ...]:
    """What one capture holds and the other does not, in sentences; none where both hold the same kinds of things."""
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
        )
    )


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
    return any(has_elements(source, key) for key in own)


def _families(own: Manifest, other: Manifest) -> Iterator[str]:
    held, wanted = ({entry.family for entry in manifest.entries} for manifest in (own, other))
    lacking = [family for family in _ASKED_FOR if family in wanted - held]
    # A file of somebody else has one family, which may be any of ours.
    if lacking and TENSOR not in held | wanted:
        yield f"holds nothing of {', '.join(lacking)}"


def _left_out(own: Manifest, other: Manifest) -> Iterator[str]:
    filtered, elsewhere = (manifest.ledger.counts().get("filtered", 0) for manifest in (own, other))
    if filtered > elsewhere:
        yield f"left out {counted(filtered, 'site')} by its selection, the other {elsewhere:,}"


def _incomplete(manifest: Manifest) -> Iterator[str]:
    if not manifest.complete:
        yield f"is incomplete{f': {manifest.note}' if manifest.note else ''}"
