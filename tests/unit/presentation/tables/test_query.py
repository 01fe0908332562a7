"""Queries: which rows are shown, in which order."""

from __future__ import annotations

import pytest

from gradscope.dump.manifest.manifest import Manifest
from gradscope.errors import UsageError
from gradscope.presentation import Query, rows_of
from tests.support.report_samples import entry, numbers, report_of, small_network, text_of


def keys(query: Query, manifest: Manifest | None = None) -> list[str]:
    return [row.key for row in query(rows_of(manifest or small_network()))]


def sizes(*columns: dict[str, object]) -> Manifest:
    made = (entry("param", f"p{n}", stats=numbers((2, 4), **each)) for n, each in enumerate(columns))
    return Manifest(entries=tuple(made))


def test_patterns_select_by_name_and_by_key() -> None:
    query = Query(select=["block1/*"], exclude=["param/*"], families=["activation", "param"])
    assert keys(query) == ["activation/block1/conv", "activation/block1/relu"]


def test_a_pattern_that_selects_nothing_is_refused_with_the_nearest_names() -> None:
    with pytest.raises(UsageError, match="selects nothing") as error:
        keys(Query(select=["blok1"]))
    assert "block1" in (error.value.hint or "")


def test_depth_leaves_deeper_layers_out_but_no_parameters() -> None:
    names = keys(Query(depth=1, families=frozenset({"activation", "param"})))
    assert names == [
        "activation/stem", "activation/block1", "activation/loss",
        "param/spare/kernel", "param/stem/conv/kernel", "param/stem/conv/bias", "param/block1/conv/kernel",
    ]  # fmt: skip


def test_sorting_puts_rows_without_the_column_last() -> None:
    manifest = sizes({"l2": 2.0}, {}, {"l2": 1.0})
    assert keys(Query(sort="l2"), manifest) == ["param/p2", "param/p0", "param/p1"]
    assert keys(Query(sort="-l2"), manifest) == ["param/p0", "param/p2", "param/p1"]


def test_nan_is_larger_than_infinity_so_that_largest_first_shows_it() -> None:
    manifest = sizes({"l2": "Infinity"}, {"l2": "NaN"}, {"l2": 1.0})
    assert keys(Query(sort="-l2"), manifest) == ["param/p1", "param/p0", "param/p2"]


def test_text_sorts_too() -> None:
    assert keys(Query(sort="-name"), sizes({}, {}, {})) == ["param/p2", "param/p1", "param/p0"]


def test_a_column_that_is_not_there_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(UsageError, match="no column 'rmss'") as error:
        keys(Query(sort="-rmss"))
    assert "rms" in (error.value.hint or "")


def test_sorted_tables_have_full_names() -> None:
    query = Query(sort="-rms", families=frozenset({"activation"}))
    names = [line.split(" ")[0] for line in text_of(small_network(), query=query).splitlines()[3:7]]
    assert names == ["block2/conv", "loss", "block1/conv", "stem/conv"]


def test_findings_are_those_about_the_rows_shown() -> None:
    manifest = small_network()
    shown = report_of(manifest, query=Query(families=frozenset({"activation"})))
    assert [(each.rule, each.name) for each in shown.findings] == [("dead", "block1/relu")]
    assert report_of(manifest, query=Query(families=frozenset({"input"}))).findings == ()
