"""Reads one entry of a manifest out of untrusted JSON, field by field."""

from __future__ import annotations

from typing import Final, get_args

from gradscope.dump.manifest.json_fields import Fields, Readers, read_object
from gradscope.dump.manifest.manifest import Entry, Stored
from gradscope.dump.record import Json, Reason, Shard, SiteFacts

#: The reasons why a tensor may be absent.
REASONS: Final[tuple[Reason, ...]] = get_args(Reason)


def read_entry(value: Json, position: int) -> Entry:
    """Returns the entry that a JSON value describes.

    Args:
        value: The value.
        position: Its position among the entries.

    Raises:
        DumpError: It describes none.
    """
    return read_object(value, f"entry {position}", Entry, _ENTRY)


def _reason(fields: Fields, name: str) -> Reason:
    return fields.choice(name, REASONS, "captured")


def _site(fields: Fields, name: str) -> SiteFacts:
    return read_object(fields.values[name], f"the site of {fields.what}", SiteFacts, _SITE)


def _stored(fields: Fields, name: str) -> Stored:
    return read_object(fields.values[name], f"the location of {fields.what}", Stored, _STORED)


def _shard(fields: Fields, name: str) -> Shard:
    return read_object(fields.values[name], f"the shard of {fields.what}", Shard, _SHARD)


#: How the fields are read.
_SITE: Final[Readers] = {
    "index": Fields.count,
    "source": Fields.text,
    "primitive": Fields.text,
    "layer": Fields.text,
    "iteration": Fields.counts,
    "operation": Fields.flag,
    "of": Fields.text,
}
_STORED: Final[Readers] = {
    "member": Fields.text,
    "dtype": Fields.text,
    "crc32": Fields.count,
    "offset": Fields.count,
    "size_bytes": Fields.count,
}
_SHARD: Final[Readers] = {"of": Fields.text, "whole": Fields.sizes, "start": Fields.sizes}
_ENTRY: Final[Readers] = {
    "family": Fields.text,
    "name": Fields.text,
    "shape": Fields.sizes,
    "dtype": Fields.text,
    "stats": Fields.statistics,
    "site": _site,
    "stored": _stored,
    "alias_of": Fields.text,
    "absent": _reason,
    "shard": _shard,
}
