"""A page of a dump takes work linear in its manifest, whatever a stranger's file has."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest

from gradscope.dump.manifest.manifest import Entry, Layer, Manifest
from gradscope.dump.manifest.operation_facts import Origin
from gradscope.dump.record import Json, SiteFacts
from gradscope.presentation import dump_page, page_html
from gradscope.presentation.page.content.block_content import blocks_content
from gradscope.presentation.page.content.json_values import Keys
from gradscope.presentation.tables.by_block.call_labels import call_labels
from gradscope.presentation.tables.by_block.contents import block_tree
from gradscope.presentation.tables.dump_rows import rows_of
from gradscope.stats import find
from tests.support.report_samples import numbers
from tests.support.work import steps


def entry(key: str, index: int, **more: Json) -> Entry:
    family, _, name = key.partition("/")
    site = SiteFacts(index=index, layer=f"net/layer#{index + 2}")
    return Entry(family=family, name=name, shape=(4,), dtype="float32", stats=numbers((4,), rms=1.0, **more), site=site)


def origins_of_one_kind(count: int) -> Manifest:
    origins = (Origin(direction="forward", name=f"a{n}", why="divides by 0") for n in range(count))
    entries = (entry(f"param_grad/a{n}", n, nan=1) for n in range(count))
    return Manifest(entries=tuple(entries), origins=tuple(origins), loss=float("nan"))


def calls_of_one_layer(count: int) -> Manifest:
    values = (entry(f"activation/net/layer#{n + 2}", n) for n in range(count))
    params = (entry(f"param/w{n}", n) for n in range(count))
    layers = (Layer(path=f"net/layer#{n + 2}", index=n, params=(f"w{n}",)) for n in range(count))
    return Manifest(entries=(*values, *params), layers=tuple(layers))


@pytest.mark.slow
def test_work_grows_with_the_origins() -> None:
    def page(manifest: Manifest) -> Callable[[], str]:
        return lambda: page_html(dump_page("a.npz", manifest, find(manifest)))

    page(origins_of_one_kind(2))()  # what is made once
    assert steps(page(origins_of_one_kind(240))) < 5 * steps(page(origins_of_one_kind(60)))


def test_work_grows_with_the_calls_of_a_layer() -> None:
    small, large = (
        block_tree(rows_of(manifest), manifest.layers, {}) for manifest in map(calls_of_one_layer, (60, 240))
    )
    assert len(call_labels(large)) == 240
    assert steps(lambda: call_labels(large)) < 5 * steps(lambda: call_labels(small))


@pytest.mark.slow
def test_of_the_tree_of_blocks_nothing_is_made_before_it_is_written() -> None:
    manifest = calls_of_one_layer(2_000)
    rows = rows_of(manifest)

    def peak_bytes(make: Callable[[], object]) -> int:
        tracemalloc.start()
        try:
            made = make()
            return tracemalloc.get_traced_memory()[1] if made else 0
        finally:
            tracemalloc.stop()

    tree = peak_bytes(lambda: block_tree(rows, manifest.layers, {}))
    assert peak_bytes(lambda: blocks_content(rows, manifest.layers, {}, Keys())) < 1.1 * tree
