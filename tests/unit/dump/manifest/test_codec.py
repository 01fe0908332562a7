"""A manifest survives a JSON round trip, and a malformed one is refused with the name of the field.

So it is with msgspec, which decodes long manifests, and without.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gradscope.dump.manifest.codec import manifest_from_text, manifest_to_text
from gradscope.dump.manifest.entries import manifest_text
from gradscope.dump.manifest.manifest import (
    Cause,
    Entry,
    Examples,
    Layer,
    Ledger,
    LedgerLine,
    Manifest,
    Stored,
)
from gradscope.dump.manifest.operation_facts import (
    BatchBroadcast,
    Clip,
    Collective,
    OutOfBounds,
    RandomMask,
    RectifiedLogits,
    Saturation,
    SoftmaxUse,
    StepFunction,
)
from gradscope.dump.record import Shard, SiteFacts
from gradscope.dump.sources.memory_dump import MemoryDump
from gradscope.errors import DumpError
from tests.support.work import calls

ENTRY = Entry(
    family="activation",
    name="conv \ud800",
    shape=(2, 3),
    dtype="bfloat16",
    stats={"mean": 0.5, "nan": 0, "histogram": {"first": 3, "counts": [1, 2]}},
    site=SiteFacts(index=7, source="model.py:3", primitive="conv", layer="conv", iteration=(1, 0)),
    stored=Stored(member="activation/conv.npy", dtype="|V2", crc32=2**32 - 1, offset=128, size_bytes=12),
)
MANIFEST = Manifest(
    entries=(
        ENTRY,
        replace(ENTRY, name="wrapper", stored=None, alias_of="activation/conv"),
        replace(ENTRY, name="head", stored=None, absent="disconnected", site=SiteFacts(index=0)),
    ),
    layers=(
        Layer(path="conv", index=7, params=("w",), inputs=("x",), outputs=("conv",), rms={"in": math.inf, "out": 1.5}),
    ),
    ledger=Ledger(captured=2, missing=(LedgerLine(name="b", family="activation", reason="opaque", detail="while"),)),
    causes=(Cause(family="param_grad", name="w", why="masked"),),
    loss=0.25,
    complete=False,
    tier="core",
    provenance={"versions": {"jax": "0.10"}, "flags": [1, None, True]},
    self_check={"total": 3},
    examples=Examples(count=8, combined_by="sum", rel_l2=math.inf, coupled=True),
    timings={"run": 0.5},
    saturations=(
        Saturation(
            function="tanh", index=3, saturated=0.95, layer="conv", inputs=("x",), source="model.py:4", iteration=(1,)
        ),
        Saturation(function="softmax", index=4, saturated=0.5),
        Saturation(function="softmax", index=5, saturated=0.5, names=("a", "b"), noise=0.25, again=True),
    ),
    broadcasts=(BatchBroadcast(input="y", size=8, column=True, primitive="sub", source="train.py:9"),),
    out_of_bounds=(OutOfBounds(input="ids", table="embed", rows=9, index=-2, beyond=1, indices=4, source="a.py:2"),),
    step_functions=(
        StepFunction(family="param", name="w", primitive="round", beside=("reduce_max",), source="a.py:3"),
    ),
    random_masks=(
        RandomMask(share=0.99, elements=64, index=5, names=("fc",), source="a.py:5"),
        RandomMask(share=0.9, elements=8, index=7),
    ),
    rectified_logits=(
        RectifiedLogits(function="sigmoid", source="a.py:7"),
        RectifiedLogits(function="softmax", by="tanh"),
    ),
    clips=(Clip(low=-1.0, high=0.5, share=0.25, index=6, source="a.py:4"), Clip(low=0.0, high=1.0, share=1.0, index=9)),
    softmax_uses=(
        SoftmaxUse(shape=(4, 6, 6), over=(0, 1), summed=(2,), source="a.py:5"),
        SoftmaxUse(shape=(6, 6), over=(1,), summed=(1,), reads=(0.0, 0.125, 0.25)),
    ),
    mesh={"data": 4, "model": 2},
    shard_axes=("model",),
    collectives=(
        Collective(function="pmean", axes=("data", "model"), index=3, layer="norm", source="a.py:8"),
        Collective(function="psum", axes=("data",), index=4),
    ),
    loss_sources=("activation/head", "input/y"),
    note="cut short",
)


@pytest.fixture(autouse=True, params=["msgspec", "json in parts", "json"])
def _decoded_by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "msgspec":
        pytest.importorskip("msgspec", reason="msgspec is absent: manifests were NOT decoded with it")
    if request.param == "json in parts":
        monkeypatch.setattr(manifest_text, "compiled_entries", lambda *_, **__: None)
    if request.param != "json":
        monkeypatch.setattr(manifest_text, "_LONG", 0)


@pytest.mark.parametrize("manifest", [MANIFEST, Manifest(entries=()), replace(MANIFEST, loss=-math.inf)])
def test_a_manifest_survives(manifest: Manifest) -> None:
    text = manifest_to_text(manifest)
    assert text.isascii()
    assert manifest_from_text(text.encode()) == manifest


def test_a_loss_that_is_not_a_number_survives() -> None:
    found = manifest_from_text(manifest_to_text(replace(MANIFEST, loss=math.nan)).encode())
    assert found.loss is not None
    assert math.isnan(found.loss)


def test_a_manifest_of_other_entries_keeps_every_fact_of_the_run() -> None:
    assert Manifest.of(MANIFEST.entries[:1], MANIFEST) == replace(MANIFEST, entries=MANIFEST.entries[:1])


def test_records_of_a_dump_in_memory_have_every_fact_of_their_entries() -> None:
    entry = replace(ENTRY, name="conv", stored=None, shard=Shard(of="conv", whole=(4, 3), start=(2, 0)))
    array = np.ones((2, 3), np.float32)
    (found,) = MemoryDump(Manifest(entries=(entry,)), {"activation/conv": array}).records()
    assert Entry.of(found) == entry
    assert found.array is array


def test_a_field_at_its_default_is_left_out() -> None:
    assert json.loads(manifest_to_text(Manifest(entries=()))) == {"schema": 2, "entries": []}


def altered(field: str, value: Any) -> bytes:
    """Returns the manifest's text with another value at a field such as `entries.0.shape`; `...` removes the field."""
    document: Any = json.loads(manifest_to_text(MANIFEST))
    *parents, last = (int(part) if part.isdigit() else part for part in field.split("."))
    at = document
    for part in parents:
        at = at[part]
    if value is ...:
        del at[last]
    else:
        at[last] = value
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("schema", 3, "schema 3"),
        ("schema", 0, "schema 0"),
        ("schema", ..., "which schema"),
        ("schema", True, "which schema"),
        ("entries", ..., "lacks entries"),
        ("entries", {}, "entries should be a list"),
        ("entries.1", 3, "entry 1 .* not an object"),
        ("entries.0.name", 3, "name should be text, found 3"),
        ("entries.0.shape", [2, -3], "shape should be a list of counts"),
        ("entries.0.shape", [1] * 65, "shape should be a list of at most 64 counts"),
        ("entries.0.shape", [2.0], "shape"),
        ("entries.0.shape", [True], "shape"),
        ("entries.0.shape", ..., "lacks shape"),
        ("entries.0.nonsense", 1, "unknown fields.*nonsense"),
        ("entries.0.stats", [], "stats should be an object"),
        ("entries.0.stats", {f"s{number}": number for number in range(300)}, "different statistics, more than 256"),
        ("entries.0.site", None, "site of entry 0"),
        ("entries.0.site.index", "7", "index"),
        ("entries.0.stored.crc32", 2**64, "crc32"),
        ("entries.0.stored.offset", -1, "offset"),
        ("entries.0.alias_of", None, "alias_of"),
        ("entries.2.absent", "gone", "absent should be one of"),
        ("layers.0.rms.in", "big", "rms"),
        ("layers.0.params", ["w", 1], "params should be a list of texts"),
        ("ledger.missing.0.reason", ..., "lacks reason"),
        ("causes.0.why", 3, "why should be text"),
        ("causes.0.why", ..., "lacks why"),
        ("loss", None, "loss"),
        ("examples.combined_by", "product", "combined_by should be one of mean, sum"),
        ("examples.rel_l2", None, "rel_l2"),
        ("examples.count", ..., "the summary of the examples in the manifest lacks count"),
        ("complete", 1, "complete should be true or false"),
        ("tier", "all", "tier should be one of"),
        ("timings", {"run": []}, "timings"),
    ],
)
def test_a_field_of_the_wrong_kind_is_refused_by_name(field: str, value: Any, problem: str) -> None:
    with pytest.raises(DumpError, match=problem):
        manifest_from_text(altered(field, value))


def test_manifests_of_the_first_version_are_read_and_written_as_of_this_one() -> None:
    read = manifest_from_text(b'{"schema":1,"entries":[],"note":"old"}')
    assert read == Manifest(entries=(), note="old")
    assert json.loads(manifest_to_text(read))["schema"] == 2


def test_the_error_of_a_newer_schema_names_the_needed_version() -> None:
    with pytest.raises(DumpError) as refused:
        manifest_from_text(b'{"schema": 9, "new_field": {}}')
    assert refused.value.hint == "open it with a gradscope that reads schema 9"


@pytest.mark.slow
def test_reading_and_writing_grow_with_the_entries_and_no_faster() -> None:
    def round_trip(entries: int) -> None:
        manifest = Manifest(entries=tuple(replace(ENTRY, name=f"layer{number}") for number in range(entries)))
        assert manifest_from_text(manifest_to_text(manifest).encode()) == manifest

    assert calls(lambda: round_trip(5000)) < 11 * calls(lambda: round_trip(500))
