"""Converts a manifest to JSON text and back: one object per dataclass, without the fields that have their default."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, cast, get_args

from gradscope.dump.manifest.entries.entry_fields import REASONS, read_entry
from gradscope.dump.manifest.entries.manifest_text import ItemReader, read_text
from gradscope.dump.manifest.entries.packed_statistics import MOST_STATISTICS, different_names
from gradscope.dump.manifest.entries.released_text import Text
from gradscope.dump.manifest.json_fields import Fields, Readers, read_object
from gradscope.dump.manifest.json_text import dumps, from_float
from gradscope.dump.manifest.manifest import (
    SCHEMAS_READ,
    Cause,
    Entry,
    Examples,
    Layer,
    Ledger,
    LedgerLine,
    Manifest,
    Tier,
)
from gradscope.dump.manifest.operation_facts import fact_fields
from gradscope.dump.record import Json
from gradscope.errors import DumpError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_COMBINED_BY: Final[tuple[Literal["mean", "sum"], ...]] = ("mean", "sum")
_TIERS: Final[tuple[Tier, ...]] = get_args(Tier)


def manifest_to_text(manifest: Manifest) -> str:
    """Returns the JSON text of a manifest; equal manifests have equal text."""
    return dumps(manifest_to_json(manifest))


def manifest_to_json(manifest: Manifest) -> dict[str, Json]:
    """Returns the JSON object of a manifest."""
    # The schema version comes first, and is written even at its default, because every reader looks for it.
    return {"schema": manifest.schema, **_object(manifest)}


def manifest_from_text(text: Text, *, histograms: bool = True) -> Manifest:
    """Parses the JSON text of a manifest.

    Args:
        text: The text; memory of one that is mapped is given back.
        histograms: Whether the statistics need their histograms.

    Raises:
        DumpError: The text is not a manifest, or follows a schema that this version does not read.
    """
    found = read_text(text, ITEM_READERS, histograms=histograms)
    return manifest_from_json(found.rest, found.lists)


def manifest_from_json(value: Json, lists: Mapping[str, tuple[Any, ...]] = MappingProxyType({})) -> Manifest:
    """Returns the manifest that a JSON object describes. See `manifest_from_text`.

    Args:
        value: The object.
        lists: Items of its lists that are not in it, as `read_text` returns them.
    """
    _require_schema(value)
    manifest = Fields.of(value, "the top level", Manifest)
    entries = manifest.each("entries", read_entry) + lists.get("entries", ())
    _require_few_statistics(entries)
    return Manifest(
        entries=entries,
        layers=manifest.each("layers", _layer) + lists.get("layers", ()),
        ledger=_ledger(manifest.object("ledger"), lists.get("missing", ())),
        causes=manifest.each("causes", _cause) + lists.get("causes", ()),
        loss=manifest.optional_number("loss"),
        loss_sources=manifest.texts("loss_sources"),
        complete=manifest.boolean("complete", default=True),
        tier=manifest.choice("tier", _TIERS, "full"),
        provenance=manifest.object("provenance"),
        self_check=manifest.object("self_check") if "self_check" in manifest.values else None,
        examples=_examples(manifest.values["examples"]) if "examples" in manifest.values else None,
        timings=manifest.numbers("timings"),
        origins=manifest.each("origins", fact_fields.origin),
        saturations=manifest.each("saturations", fact_fields.saturation),
        broadcasts=manifest.each("broadcasts", fact_fields.broadcast),
        out_of_bounds=manifest.each("out_of_bounds", fact_fields.out_of_bounds),
        step_functions=manifest.each("step_functions", fact_fields.step_function),
        clips=manifest.each("clips", fact_fields.clip),
        random_masks=manifest.each("random_masks", fact_fields.random_mask),
        rectified_logits=manifest.each("rectified_logits", fact_fields.rectified),
        softmax_uses=manifest.each("softmax_uses", fact_fields.softmax_use),
        mesh=manifest.counted("mesh"),
        shard_axes=manifest.texts("shard_axes"),
        collectives=manifest.each("collectives", fact_fields.collective),
        note=manifest.text("note"),
    )


def _require_schema(value: Json) -> None:
    schema = value.get("schema") if isinstance(value, dict) else None
    if type(schema) is not int:
        raise DumpError("the manifest does not state which schema it follows")
    if schema not in SCHEMAS_READ:
        raise DumpError(
            f"the dump follows schema {schema}, and this gradscope reads {' and '.join(map(str, SCHEMAS_READ))}",
            hint=f"open it with a gradscope that reads schema {schema}",
        )


def _require_few_statistics(entries: Sequence[Entry]) -> None:
    names = len(different_names(entry.stats for entry in entries))
    if names > MOST_STATISTICS:
        raise DumpError(f"the manifest has {names:,} different statistics, more than {MOST_STATISTICS}")


def _object(value: DataclassInstance) -> dict[str, Json]:
    defaults = _defaults(type(value))
    named = ((name, getattr(value, name), default) for name, default in defaults.items())
    return {name: _json(each) for name, each, default in named if each != default}


def _json(value: Any) -> Json:
    if isinstance(value, tuple):
        return [_json(each) for each in cast("tuple[Any, ...]", value)]
    if isinstance(value, Mapping):
        items = cast("Mapping[str, Json]", value).items()
        return {name: from_float(each) if type(each) is float else each for name, each in items}
    if isinstance(value, float):
        return from_float(value)
    return _object(value) if hasattr(value, "__dataclass_fields__") else value


@cache
def _defaults(kind: type[DataclassInstance]) -> dict[str, object]:
    return {field.name: _default(field) for field in fields(kind)}


def _default(field: Field[Any]) -> object:
    return field.default if field.default_factory is MISSING else field.default_factory()


#: How the fields of a layer are read.
_LAYER: Final[Readers] = {
    "path": Fields.text,
    "index": Fields.count,
    "parent": Fields.text,
    "source": Fields.text,
    "primitive": Fields.text,
    "operation": Fields.flag,
    "params": Fields.texts,
    "elementwise": Fields.texts,
    "inputs": Fields.texts,
    "outputs": Fields.texts,
    "sources": Fields.texts,
    "narrowest": Fields.text,
    "rms": Fields.numbers,
    "elements": Fields.counted,
}


def _layer(value: Json, position: int) -> Layer:
    return read_object(value, f"layer {position}", Layer, _LAYER)


def _ledger(value: Json, missing: tuple[LedgerLine, ...]) -> Ledger:
    ledger = Fields.of(value, "the ledger", Ledger)
    return Ledger(captured=ledger.count("captured"), missing=ledger.each("missing", _ledger_line) + missing)


def _examples(value: Json) -> Examples:
    examples = Fields.of(value, "the summary of the examples", Examples)
    return Examples(
        count=examples.count("count"),
        combined_by=examples.choice("combined_by", _COMBINED_BY, "mean"),
        rel_l2=examples.number("rel_l2"),
        coupled=examples.boolean("coupled", default=False),
    )


def _ledger_line(value: Json, position: int) -> LedgerLine:
    line = Fields.of(value, f"line {position} of the ledger", LedgerLine)
    return LedgerLine(
        name=line.text("name"),
        family=line.text("family"),
        reason=line.choice("reason", REASONS, "captured"),
        detail=line.text("detail"),
    )


def _cause(value: Json, position: int) -> Cause:
    cause = Fields.of(value, f"cause {position}", Cause)
    return Cause(
        family=cause.text("family"),
        name=cause.text("name"),
        why=cause.text("why"),
        rounding=cause.boolean("rounding", default=False),
    )


#: What makes an item of each list of a manifest that may be long, but for its entries.
ITEM_READERS: Final[Mapping[str, ItemReader]] = {"layers": _layer, "missing": _ledger_line, "causes": _cause}
