"""Entries that msgspec decodes are those that Python reads; text that needs a closer look is left to Python."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from gradscope.dump.manifest.codec import manifest_from_json, manifest_from_text, manifest_to_text
from gradscope.dump.manifest.entries import compiled_entries as module
from gradscope.dump.manifest.entries import manifest_text
from gradscope.dump.manifest.entries.compiled_entries import compiled_entries
from gradscope.dump.manifest.json_text import loads
from gradscope.dump.manifest.manifest import Entry, Manifest, Stored
from gradscope.dump.record import Shard, SiteFacts, fields_of
from gradscope.errors import DumpError

pytest.importorskip("msgspec", reason="msgspec is absent: manifests were NOT decoded with it")

FULL = Entry(
    family="param",
    name="a",
    shape=(2, 3),
    dtype="float32",
    stats={"l2": 0.1, "max": "Infinity", "size": 6, "hash": "é", "histogram": {"first": 3, "counts": [1, 2]}},
    site=SiteFacts(index=0, source="m.py:1", primitive="dot", layer="x", iteration=(1,), operation=True, of="y"),
    stored=Stored(member="param/a.npy", dtype="<f4", crc32=1, offset=0, size_bytes=24),
    shard=Shard(of="a", whole=(4, 3), start=(2, 0)),
)
BARE = Entry(family="x", name="b", shape=(), dtype="int4", stats={}, site=SiteFacts(index=1))
MANIFEST = Manifest(
    entries=(FULL, BARE, replace(BARE, name="c", alias_of="param/a"), replace(BARE, name="d", absent="opaque")),
    loss=0.5,
    provenance={"entries": [1, {"a": None}]},
    note="a note",
)
TEXT = manifest_to_text(MANIFEST).encode()
ENTRIES = TEXT[TEXT.rindex(b'"entries":[') + 11 : -2]


@pytest.fixture(autouse=True)
def _short_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest_text, "_LONG", 0)


@pytest.mark.parametrize("text", [ENTRIES, ENTRIES.replace(b'":', b'": ').replace(b"},", b"},\n  ")])
def test_entries_are_what_python_reads(text: bytes) -> None:
    found = compiled_entries(text)
    assert found is not None
    assert tuple(found) == MANIFEST.entries == manifest_from_json(loads(TEXT)).entries
    assert manifest_from_text(TEXT) == MANIFEST


def test_entries_without_histograms_have_all_else() -> None:
    found = compiled_entries(ENTRIES, histograms=False)
    assert found is not None
    first, *others = (Entry(**fields_of(Entry, each)) for each in found)
    stats = {name: value for name, value in FULL.stats.items() if name != "histogram"}
    assert "histogram" in FULL.stats
    assert (first, *others) == (replace(FULL, stats=stats), *MANIFEST.entries[1:])
    assert manifest_from_text(TEXT, histograms=False).entries == tuple(found)


@pytest.mark.parametrize(
    ("part", "altered"),
    [
        (b'"l2":0.1', b'"l2":{"first":3,"counts":[1]}'),
        (b'{"first":3,"counts":[1,2]}', b'{"first":3,"counts":[],"more":1}'),
        (b'{"first":3,"counts":[1,2]}', b'{"first":3,"counts":[{"a":1}]}'),
        (b'"first":3', b'"first":1e999'),
        (b'"size":6', b'"size":{}'),
        (b'"counts":[1,2]', '"counts":["é"]'.encode()),
    ],
)
def test_statistics_of_another_form_are_left_to_python_where_histograms_are_not_requested(
    part: bytes, altered: bytes
) -> None:
    text = TEXT.replace(part, altered, 1)
    assert text != TEXT
    assert compiled_entries(ENTRIES.replace(part, altered, 1), histograms=False) is None
    first, *others = manifest_from_json(loads(text)).entries
    stats = {name: value for name, value in first.stats.items() if name != "histogram"}
    assert manifest_from_text(text, histograms=False).entries == (replace(first, stats=stats), *others)


@pytest.mark.parametrize("histograms", [True, False])
@pytest.mark.parametrize(
    ("part", "altered", "problem"),
    [
        (b'"name":"b"', b'"name":"z","name":"b"', "names a field twice"),
        (b'"index":1', b'"index":5,"index":1', "names a field twice"),
        (b'"loss":0.5', b'"loss":1.0,"loss":0.5', "names a field twice"),
        (b'"l2":0.1', b'"l2":0.2,"l2":0.1', "names a field twice"),
        (b'"first":3', b'"first":4,"first":3', "names a field twice"),
        (b'"counts":[1,2]', b'"counts":[{"a":1,"a":2}]', "names a field twice"),
        (b'"counts":[1,2]', b'"counts":[01,2]', "malformed"),
        (b'"counts":[1,2]', b'"counts":["\xff"]', "malformed"),
        (b'"entries":[', b'"entries":[],"entries":[', "names a field twice"),
        (b'"name":"b"', b'"name":"b","more":1', "unknown fields.*more"),
        (b'"name":"b"', b'"name":"b","alias_of":null', "alias_of should be text"),
        (b'"offset":0', b'"offset":-1', "offset should be a count"),
        (b'"offset":0', b'"offset":0.0', "offset should be a count"),
        (b'"shape":[2,3]', b'"shape":[2,-3]', "shape should be a list of counts"),
        (b'"shape":[2,3]', b'"shape":[' + b"1," * 64 + b"1]", "shape should be a list of at most 64 counts"),
        (b'"whole":[4,3]', b'"whole":[' + b"1," * 64 + b"1]", "whole should be a list of at most 64 counts"),
        (b'"iteration":[1]', b'"iteration":[-1]', "iteration should be a list of counts"),
        (b'"whole":[4,3]', b'"whole":[4,9223372036854775808]', "whole should be a list of counts"),
        (b'"crc32":1', b'"crc32":9223372036854775808', "crc32 should be a count"),
        (b'"size":6', b'"size":9223372036854775808', "stats has an integer of 19 digits"),
        (b'"size":6', b'"size":-9223372036854775808', "stats has an integer of 20 digits"),
        (b'"size":6', b'"size":06', "malformed"),
        (b'"operation":true', b'"operation":1', "operation should be true or false"),
        (b'"index":1', b'"index":1' + b',"x":' + b"[" * 40 + b"]" * 40, "deeper than"),
    ],
)
def test_what_python_refuses_is_refused_with_its_words(
    part: bytes, altered: bytes, problem: str, *, histograms: bool
) -> None:
    assert part in TEXT
    with pytest.raises(DumpError, match=problem) as refused:
        manifest_from_text(TEXT.replace(part, altered, 1), histograms=histograms)
    with pytest.raises(DumpError, match=re.escape(refused.value.message)):
        manifest_from_json(loads(TEXT.replace(part, altered, 1)))


@pytest.mark.parametrize(
    ("part", "altered"),
    [
        (b'"name":"b"', b'"name":"\\ud800"'),
        (b'"l2":0.1', b'"l2":1e400'),
        (b'"index":1', b'"index":1,"operation":false'),
        (b'"name":"b"', b'"name":"\\":"'),
    ],
)
def test_what_is_valid_and_unusual_is_read_by_python(part: bytes, altered: bytes) -> None:
    text = TEXT.replace(part, altered, 1)
    assert text != TEXT
    assert compiled_entries(ENTRIES.replace(part, altered, 1)) is None
    assert manifest_from_text(text) == manifest_from_json(loads(text))


def test_entries_on_a_machine_without_msgspec_are_left_to_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "msgspec", None)
    module._decoders.cache_clear()  # pyright: ignore[reportPrivateUsage]
    try:
        assert compiled_entries(ENTRIES) is None
        assert manifest_from_text(TEXT) == MANIFEST
    finally:
        module._decoders.cache_clear()  # pyright: ignore[reportPrivateUsage]
