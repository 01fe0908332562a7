"""Folding: the iterations of a loop on one line, and nothing said about them lost."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gradscope.dump.manifest.manifest import Manifest
from gradscope.presentation import Query
from gradscope.presentation.tables.folding import folded
from gradscope.presentation.tables.numbers import Range
from gradscope.presentation.tables.table import Cell, Column, Line, Table
from tests.support.report_samples import PIPE, entry, scanned_network, text_of

COLUMNS = (
    Column(heading="name", kind="name"),
    Column(heading="shape", kind="shape"),
    Column(heading="rms", kind="number"),
    Column(heading="source", kind="text"),
    Column(heading="notes", kind="words"),
)


def line(
    name: str, rms: float | None = 1.0, *, shape: tuple[int, ...] = (2,), source: str = "a:1", notes: Cell = None
) -> Line:
    return Line(cells=(name, shape, rms, source, notes), keys=(f"activation/{name}",))


def fold(lines: Sequence[Line]) -> list[tuple[Cell, ...]]:
    table = Table(title="Layers", columns=COLUMNS, lines=tuple(lines))
    return [each.cells for each in folded(table, {key for each in lines for key in each.keys}).lines]


def test_numbers_become_the_range_over_iterations() -> None:
    assert fold([line("b[0]/x", 3.0), line("b[1]/x", 1.0), line("b[2]/x", 2.0)]) == [
        ("b[0..2]/x", (2,), Range(1.0, 3.0), "a:1", None)
    ]


def test_numbers_that_agree_stay_one_number() -> None:
    assert fold([line("b[0]"), line("b[1]")]) == [("b[0..1]", (2,), 1.0, "a:1", None)]


def test_nested_loops_fold_in_every_direction() -> None:
    lines = [line(f"a[{i}]/b[{j}]") for i in range(2) for j in range(3)]
    assert [cells[0] for cells in fold(lines)] == ["a[0..1]/b[0..2]"]


def test_a_note_has_the_number_of_iterations_it_applies_to() -> None:
    lines = [line("b[0]", notes=("dead", "init")), line("b[1]", notes=("dead",))]
    assert fold(lines)[0][-1] == ("dead", "init 1/2")


def test_a_note_on_a_single_iteration_is_kept() -> None:
    assert fold([line("b[0]", notes=("dead",)), line("b[1]")])[0][-1] == ("dead 1/2",)


def test_a_number_that_some_iterations_lack_is_kept() -> None:
    assert fold([line("b[0]", None), line("b[1]", 2.0)])[0][2] == 2.0


def test_nan_is_not_lost_in_a_range() -> None:
    folded_rms = fold([line("b[0]", 1.0), line("b[1]", math.nan), line("b[2]", 3.0)])[0][2]
    assert isinstance(folded_rms, float)
    assert math.isnan(folded_rms)


def test_texts_that_differ_are_several() -> None:
    assert fold([line("b[0]", source="a:1"), line("b[1]", source="a:2")])[0][3] == "(several)"


def test_iterations_with_gaps_or_of_different_shapes_do_not_fold() -> None:
    assert len(fold([line("b[0]"), line("b[2]")])) == 2
    assert len(fold([line("b[0]"), line("b[1]", shape=(3,))])) == 2


def test_a_folded_line_has_the_keys_of_all_its_iterations() -> None:
    table = Table(title="", columns=COLUMNS, lines=(line("b[0]"), line("b[1]")))
    (only,) = folded(table, {"activation/b[0]", "activation/b[1]"}).lines
    assert only.keys == ("activation/b[0]", "activation/b[1]")


def test_brackets_of_what_was_made_in_no_loop_are_no_iterations() -> None:
    manifest = Manifest(entries=(entry("param", "layers[0]/w"), entry("param", "layers[1]/w")))
    text = text_of(manifest)
    assert "layers[0]/w" in text
    assert "layers[1]/w" in text


def test_nothing_folds_in_a_pipe_or_on_request_or_when_sorted() -> None:
    manifest = scanned_network()
    assert "block[0..2]" in text_of(manifest)
    for text in (text_of(manifest, PIPE), text_of(manifest, fold=False), text_of(manifest, query=Query(sort="rms"))):
        assert "block[0..2]" not in text
        assert "folded" not in text
