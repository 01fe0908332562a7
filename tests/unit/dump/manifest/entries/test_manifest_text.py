"""A long manifest is what it is in one piece, wherever its text is cut, and takes bounded memory."""

from __future__ import annotations

import json
import mmap
import re
import tracemalloc
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradscope.dump.manifest.codec import manifest_from_json, manifest_from_text, manifest_to_json, manifest_to_text
from gradscope.dump.manifest.entries import list_parts, manifest_text
from gradscope.dump.manifest.entries.released_text import new_text
from gradscope.dump.manifest.json_scan import MemoryBudget
from gradscope.dump.manifest.json_text import loads
from gradscope.dump.manifest.manifest import Cause, Entry, Layer, Ledger, LedgerLine, Manifest, Stored
from gradscope.dump.record import Json, SiteFacts
from gradscope.errors import DumpError
from tests.support.sampled import sampled

MIB = 1 << 20


def entry(number: int) -> Entry:
    name = f"encoder/layers[{number}]/attention"
    stats: dict[str, Json] = {f"statistic{each}": 0.123456789 * number for each in range(20)}
    counts: list[Json] = [1, 0, 2] * 40
    return Entry(
        family="activation",
        name=name,
        shape=(16, number % 3),
        dtype="float32",
        stats={**stats, "size": 16, "hash": f"{number:032x}", "histogram": {"first": 16_000, "counts": counts}},
        site=SiteFacts(index=number, source="model.py:4", layer=name, iteration=(number,)),
        stored=Stored(
            member=f"activation/{name}.npy", dtype="<f4", crc32=number * 7, offset=64 * number, size_bytes=64
        ),
    )


def layer(number: int) -> Layer:
    path = f"encoder/layers[{number}]/attention"
    rms = {"in": 0.1 * number, "out": 1 / 3, "grad_in": 1e-7 / 3, "grad_out": 2 / 3}
    return Layer(
        path=path,
        index=number,
        parent=f"encoder/layers[{number}]",
        source="model.py:123",
        params=(f"{path}/kernel", f"{path}/bias"),
        inputs=(f"encoder/layers[{number - 1}]/attention",),
        outputs=(path,),
        rms=rms,
        elements=dict.fromkeys(rms, 123_456),
    )


def manifest(count: int, provenance: dict[str, Json] | None = None) -> Manifest:
    """Returns a manifest of so many entries, and half as many layers, missing values and causes."""
    half = range(count // 2)
    return Manifest(
        entries=tuple(map(entry, range(count))),
        layers=tuple(map(layer, half)),
        ledger=Ledger(
            captured=3,
            missing=tuple(LedgerLine(name=f"a[{n}]", family="activation_grad", reason="filtered") for n in half),
        ),
        causes=tuple(Cause(family="param_grad", name=f"w[{n}]", why="a stop_gradient") for n in half),
        loss=0.5,
        provenance=provenance or {},
    )


MANIFEST = manifest(9, {"layers": [1], "x": {"entries": [{"a": 1}], "note": '"entries":["'}})
DOCUMENT = manifest_to_json(MANIFEST)
COMPACT = manifest_to_text(MANIFEST).encode()
TEXTS = {
    "as written": COMPACT,
    "with blanks": json.dumps(DOCUMENT).encode(),
    "indented": json.dumps(DOCUMENT, indent=1).encode(),
    "backwards": json.dumps(dict(reversed(DOCUMENT.items()))).encode(),
    "not in ASCII": COMPACT.replace(b"attention", "Aufmerksamkeit 注意 \U0001f600".encode()),
}


@pytest.fixture(autouse=True)
def _in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest_text, "_LONG", 0)


@pytest.fixture(params=["msgspec", "json"])
def _decoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "json":
        monkeypatch.setattr(manifest_text, "compiled_entries", lambda *_, **__: None)


@pytest.mark.slow
@pytest.mark.usefixtures("_decoder")
@pytest.mark.parametrize("window", [3_000, 5_000, 1 << 20])
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_a_manifest_in_parts_is_what_it_is_in_one_piece(
    text: bytes, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(list_parts, "_WINDOW", window)
    assert manifest_from_text(text) == manifest_from_json(loads(text))


@pytest.mark.usefixtures("_decoder")
@settings(max_examples=150)
@given(
    at=st.integers(0, len(COMPACT) - 1), piece=st.sampled_from([b"", b",", b"]", b"}", b'"', b"[", b"1", b"\\", b" "])
)
def test_altered_text_is_refused_or_what_it_is_in_one_piece(at: int, piece: bytes) -> None:
    text = COMPACT[:at] + piece + COMPACT[at + 1 :]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(list_parts, "_WINDOW", 1_600)
        found = _outcome(text)
        patch.setattr(manifest_text, "_LONG", len(text) + 1)
        whole = _outcome(text)
    assert (found == whole) if isinstance(whole, Manifest) else isinstance(found, str)


def _outcome(text: bytes) -> Manifest | str:
    try:
        return manifest_from_text(text)
    except DumpError as error:
        return error.message


@pytest.mark.parametrize(
    ("part", "altered", "problem"),
    [
        (b'"layers":[{', b'"layers":[],"layers":[{', "names a field twice"),
        (b'"index":3,', b'"index":03,', "malformed"),
        (b'"w[3]"', b'"w[3]","name":"w"', "names a field twice"),
        (b'"reason":"filtered"', b'"reason":"odd"', "reason should be one of"),
    ],
)
def test_what_is_refused_in_one_piece_is_refused_with_its_words(part: bytes, altered: bytes, problem: str) -> None:
    assert part in COMPACT
    text = COMPACT.replace(part, altered, 1)
    with pytest.raises(DumpError, match=problem) as refused:
        manifest_from_text(text)
    with pytest.raises(DumpError, match=re.escape(refused.value.message)):
        manifest_from_json(loads(text))


def test_an_item_longer_than_a_part_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(list_parts, "_WINDOW", 700)
    with pytest.raises(DumpError, match="entries is malformed, or has more than"):
        manifest_from_text(COMPACT)


#: The limit that is put on a text here, and about its size.
SIZE = MIB // 2
HEAD = b'{"schema":2,"entries":[]'


def _numbered(template: bytes) -> bytes:
    count = SIZE // len(template % 1_000_000)
    return b",".join([template % number for number in range(1_000_000, 1_000_000 + count)])


def _repeated(item: bytes) -> bytes:
    return b",".join([item] * (SIZE // len(item)))


LISTS = HEAD + b',"provenance":{"x":[%b]}}'
BARE = b'{"schema":2,"entries":[%b]}'
FACTS = b'{"family":"","name":"%d","shape":[%b],"dtype":"x","stats":{%b},"site":{"index":0}}'
COUNTS = b'"histogram":{"first":0,"counts":[%s]}' % b",".join([b"1000000000000", *[b"7"] * 999])
LINE = b'{"name":"%d","family":"","reason":"opaque"}'
HOSTILE: dict[str, Callable[[], bytes]] = {
    "texts": lambda: LISTS % _repeated(b'"ab"'),
    "numbers": lambda: LISTS % _repeated(b"1.5"),
    "names": lambda: HEAD + b',"provenance":{%b}}' % _numbered(b'"%d":0'),
    "layers": lambda: HEAD + b',"layers":[%b]}' % _numbered(b'{"path":"%d","index":0}'),
    "causes": lambda: HEAD + b',"causes":[%b]}' % _numbered(b'{"family":"x","name":"%d","why":""}'),
    "ledger": lambda: HEAD + b',"ledger":{"missing":[%b]}}' % _numbered(LINE),
    "entries": lambda: BARE % _numbered(FACTS.replace(b"%b", b"")),
    "statistics": lambda: BARE % _numbered(FACTS.replace(b"[%b]", b"[]").replace(b"%b", b'"a":"b","c":[7,8,9]')),
    "histograms": lambda: BARE % _numbered(FACTS.replace(b"[%b]", b"[]").replace(b"%b", COUNTS)),
    "negative counts": lambda: (
        BARE % _numbered(FACTS.replace(b"[%b]", b"[]").replace(b"%b", b'"c":[%b]' % b",".join([b"-999"] * 500)))
    ),
    "axes": lambda: BARE % (FACTS % (0, _repeated(b"999"), b"")),
    "escapes": lambda: LISTS % (b'"%b"' % _repeated(b"\\u0394").replace(b",", b"")),
    "wide characters": lambda: LISTS % (b'"%b\\ud83d"' % (b"a" * SIZE)),
    "wide characters and quotes": lambda: (
        LISTS % (b'"%b\\ud83d"' % _repeated(b"a" * 99_999 + b'\\"').replace(b",", b""))
    ),
}


@sampled("kind", HOSTILE)
def test_a_manifest_of_very_many_values_is_refused_in_little_memory(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = HOSTILE[kind]()
    monkeypatch.setattr(manifest_text, "_MOST_BYTES", SIZE)
    monkeypatch.setattr(manifest_text, "_MOST_IN_ALL", SIZE)
    monkeypatch.setattr(list_parts, "_WINDOW", 1 << 15)
    tracemalloc.start()
    try:
        with pytest.raises(DumpError, match="MiB"):
            manifest_from_text(text, histograms=kind == "histograms")
        assert tracemalloc.get_traced_memory()[1] < 5 * SIZE
    finally:
        tracemalloc.stop()


def _with_two_statistics(count: int) -> Manifest:
    bare = replace(entry(0), shape=(16,), stored=None)
    return Manifest(
        entries=tuple(
            replace(bare, name=f"layer[{n}]/w", stats={"l2": n / 7, "rms": n / 11}, site=SiteFacts(index=n))
            for n in range(count)
        )
    )


@pytest.mark.usefixtures("_decoder")
@pytest.mark.parametrize(("made", "count", "mebibytes"), [(manifest, 700, 60), (_with_two_statistics, 1_870, 24)])
def test_a_dump_as_large_as_is_allowed_for_is_read(
    made: Callable[[int], Manifest], count: int, mebibytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    scale = 100
    text = manifest_to_text(made(count)).encode()
    assert mebibytes * MIB < len(text) * scale < 256 * MIB
    for name in ("_LONG", "_MOST_BYTES", "_MOST_IN_ALL"):
        monkeypatch.setattr(manifest_text, name, getattr(manifest_text, name) // scale)
    for histograms in (True, False):
        assert len(manifest_from_text(text, histograms=histograms).entries) == count


@pytest.mark.slow
def test_layers_and_missing_tensors_without_entries_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    count, scale = 700, 100
    lines = (LedgerLine(name=f"encoder/layers[{n}]/attention", family="x", reason="filtered") for n in range(2 * count))
    bare = replace(manifest(0), layers=tuple(map(layer, range(count))), ledger=Ledger(captured=0, missing=tuple(lines)))
    name = "_MOST_BYTES"
    monkeypatch.setattr(manifest_text, name, getattr(manifest_text, name) // scale)
    assert manifest_from_text(manifest_to_text(bare).encode()) == bare


@pytest.mark.slow
@sampled("kind", ["layers", "causes", "ledger"])
def test_what_items_hold_is_about_the_memory_that_they_take(kind: str) -> None:
    spent: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "SIZE", MIB // 4)
        text = HOSTILE[kind]()
        patch.setattr(MemoryBudget, "spend", lambda _, size_bytes: spent.append(size_bytes))
        tracemalloc.start()
        found = manifest_from_text(text)
        taken = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
    assert found.entries == ()
    assert 0.9 < sum(spent) / taken < 1.3


def test_the_memory_of_lists_goes_back_to_the_system_as_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest_text, "_LONG", 0)
    monkeypatch.setattr(list_parts, "_WINDOW", mmap.PAGESIZE)
    long = manifest(100)
    plain = manifest_to_text(long).encode()
    text = new_text(len(plain))
    text[:] = plain
    assert manifest_from_text(text) == long
    left = len(plain) - bytes(text).count(0)
    assert left < len(plain) / 4, "whole pages are zeros, but for those at the ends of the lists"
