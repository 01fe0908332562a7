"""Rows: one for every family and name, the same in every format."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from dataclasses import replace

import pytest

from gradscope.dump.manifest.manifest import Entry, Layer, Manifest
from gradscope.errors import DumpError
from gradscope.naming import is_gradient, printable
from gradscope.presentation import Row, rows_of, to_csv, to_json, to_markdown
from gradscope.presentation.tables.dump_rows import FACTS, facts_of
from tests.support.report_samples import (
    HOSTILE_NAMES,
    PIPE,
    TERMINAL,
    entry,
    numbers,
    report_of,
    scanned_network,
    small_network,
    text_of,
)

DUMPS = {
    "small": small_network(),
    "scanned": scanned_network(),
    "hostile": Manifest(
        entries=tuple(entry(family, name) for name in HOSTILE_NAMES.values() for family in ("activation", "param_grad"))
    ),
    "empty": Manifest(entries=()),
}


def by_key(manifest: Manifest) -> dict[str, Row]:
    return {row.key: row for row in rows_of(manifest)}


@pytest.mark.parametrize("manifest", DUMPS.values(), ids=DUMPS)
def test_every_format_has_a_row_for_every_tensor_of_the_dump_and_no_other(manifest: Manifest) -> None:
    report = report_of(manifest)
    expected = {(each.family, each.name) for each in manifest.entries}
    in_json = [(row["family"], row["name"]) for row in json.loads(to_json(report))["rows"]]
    in_csv = [(row["family"], row["name"]) for row in csv.DictReader(io.StringIO(to_csv(report)))]
    assert set(in_json) == expected
    assert set(in_csv) == {(family, printable(name)) for family, name in expected}
    assert len(in_json) == len(in_csv) == len(manifest.entries)
    for screen in (TERMINAL, PIPE):
        keys = [key for table in report.tables(screen) for line in table.lines for key in line.keys]
        assert sorted(keys) == sorted(f"{family}/{name}" for family, name in expected)


@pytest.mark.parametrize("manifest", DUMPS.values(), ids=DUMPS)
def test_what_goes_into_a_pipe_or_a_pull_request_has_every_name_in_full(manifest: Manifest) -> None:
    names = {printable(each.name) for each in manifest.entries}
    assert names <= {line.split("  ")[0] for line in text_of(manifest, PIPE).splitlines()}
    cells = re.findall(r"^\| `+ ?(.*?) ?`+ \|", to_markdown(report_of(manifest)), re.MULTILINE)
    assert names == {cell.replace(r"\|", "|") for cell in cells}


def test_numbers_are_those_of_the_manifest() -> None:
    manifest = small_network()
    rows = by_key(manifest)
    for each in manifest.entries:
        row = rows[f"{each.family}/{each.name}"].values
        assert {name: row[name] for name in each.stats} == each.stats


@pytest.mark.parametrize("manifest", DUMPS.values(), ids=DUMPS)
def test_a_table_has_the_values_of_its_rows(manifest: Manifest) -> None:
    rows = by_key(manifest)
    for table in report_of(manifest).tables(PIPE):
        for line in table.lines:
            value, gradient = (
                [rows[key] for key in line.keys if is_gradient(rows[key].family) is of] for of in (False, True)
            )
            for column, cell in zip(table.columns, line.cells, strict=True):
                if column.kind in ("number", "share", "count") and column.group:
                    shown = gradient if column.group == "gradient" else value
                    assert cell == (column.cell(shown[0].values) if shown else None)


def layer_of(index: int, name: str, zeros: int, primitive: str | None = None, **stats: float) -> tuple[Entry, Entry]:
    lost = numbers((8, 4), rms=1.0, zeros=zeros)
    made = entry("activation", name, index=index, shape=(8, 4), stats=numbers((8, 4), rms=1.0, **stats))
    return (
        replace(made, site=replace(made.site, primitive=primitive)),
        entry("activation_grad", name, index=index, shape=(8, 4), stats=lost),
    )


def test_no_linear_output_is_dead_where_its_rectifier_has_a_line() -> None:
    entries = (
        *layer_of(0, "hidden", 32, "add", min=-30.0, dead=1.0),
        *layer_of(1, "relu", 0, "max", min=0, dead=1.0),
        *layer_of(2, "answer", 0, "add", min=0, dead=1.0),
    )
    (table,) = report_of(Manifest(entries=entries)).tables(PIPE)
    at = [column.heading for column in table.columns].index("dead")
    assert [line.cells[at] for line in table.lines] == [None, 1.0, None]


def test_dead_units_are_shown_where_a_rectifier_made_a_value_or_passes_no_gradient_to_it() -> None:
    entries = (
        *layer_of(0, "linear", 0, min=-1.0, dead=0.25),
        *layer_of(1, "before", 20, min=-1.0, dead=0.5),
        *layer_of(2, "relu", 0, min=0, dead=0.75),
        *layer_of(3, "answer", 0, min=-2.0, dead=0.0),
        *layer_of(4, "infinite", 0, dead=0.5),  # which has no finite element, and so no least one
    )
    manifest = Manifest(entries=entries)
    (table,) = report_of(manifest).tables(PIPE)
    at = [column.heading for column in table.columns].index("dead")
    assert [line.cells[at] for line in table.lines] == [None, 0.5, 0.75, None, None]
    assert [row.value("dead") for row in rows_of(manifest)[::2]] == [0.25, 0.5, 0.75, 0.0, 0.5]
    screen = text_of(manifest, TERMINAL)
    assert ["25.0%" in screen, "50.0%" in screen, "75.0%" in screen] == [False, True, True]


def test_statistics_that_json_has_as_text_are_numbers_and_others_are_refused() -> None:
    stats = {"size": 2, "rms": "NaN", "max": "Infinity", "hash": "ab", "unheard of": 3}
    (row,) = rows_of(Manifest(entries=(replace(entry("param", "w"), stats=stats),)))
    assert math.isnan(row.statistics["rms"])
    assert (row.values["max"], row.values["hash"], row.values["unheard of"]) == (math.inf, "ab", 3)
    assert stats["rms"] == "NaN"
    with pytest.raises(DumpError, match="expected a number"):
        rows_of(Manifest(entries=(replace(entry("param", "w"), stats={"l1": "large"}),)))


def test_an_alias_has_the_numbers_of_its_tensor() -> None:
    rows = by_key(small_network())
    alias, owner = rows["activation/block1"], rows["activation/block1/relu"]
    assert alias.values["alias_of"] == alias.own_key == owner.key
    assert alias.values["rms"] == owner.values["rms"] == 0.22


def test_gains_belong_to_the_layer_forward_with_its_value_and_backward_with_its_gradient() -> None:
    layer = Layer(path="lstm", index=0, rms={"in": 2.0, "out": 1.0, "grad_in": 3.0, "grad_out": 4.0})
    entries = tuple(entry(family, "lstm.1") for family in ("activation", "activation_grad", "param"))
    rows = by_key(Manifest(entries=entries, layers=(layer,)))
    gains = {key: {n: v for n, v in row.values.items() if "_gain" in n or "_total" in n} for key, row in rows.items()}
    assert gains == {
        "activation/lstm.1": {"fwd_gain": 0.5, "fwd_total": 0.5},
        "activation_grad/lstm.1": {"bwd_gain": 0.75, "bwd_total": 0.75},
        "param/lstm.1": {},
    }


def test_a_parameters_gradient_is_measured_against_the_parameter() -> None:
    rows = by_key(small_network())
    assert math.isclose(rows["param_grad/stem/conv/kernel"].values["g/w"], 0.413 / 5.61)
    assert "g/w" not in rows["param_grad/stem/conv/bias"].values


def test_rows_stand_in_execution_order_whatever_the_order_in_the_file() -> None:
    manifest = small_network()
    shuffled = Manifest(entries=tuple(reversed(manifest.entries)), layers=manifest.layers)
    names = list(dict.fromkeys(row.name for row in rows_of(shuffled) if row.family.startswith("activation")))
    assert names == [
        "stem", "stem/conv", "stem/relu", "block1", "block1/conv", "block1/relu", "block2/conv", "loss",
    ]  # fmt: skip
    families = list(dict.fromkeys(row.family.removesuffix("_grad") for row in rows_of(shuffled)))
    assert families == ["input", "activation", "param"]


def test_a_gradient_comes_right_after_its_value() -> None:
    families = [row.family for row in rows_of(small_network())]
    assert families[4:] == ["activation", "activation_grad"] * 8 + ["param", "param_grad"] * 4


def test_what_does_not_apply_has_no_value_and_not_null() -> None:
    rows = by_key(small_network())
    assert rows["param_grad/spare/kernel"].values == {"shape": [4, 4], "dtype": "float32", "absent": "disconnected"}
    assert all(value is not None for row in rows.values() for value in row.to_json().values())


@pytest.mark.parametrize("layers", [(), (Layer(path="a", index=0, rms={"in": 1.0, "out": 2.0}),)])
def test_a_fact_of_all_rows_is_that_of_each(layers: tuple[Layer, ...]) -> None:
    numbered = entry("activation", "a", iteration=(3,), source="m.py:1")
    pair = (entry("param", "w"), entry("param_grad", "w"), entry("input", "x", alias_of="param/w"))
    for entries in ((numbered,), (numbered, *pair)):
        rows = rows_of(Manifest(entries=entries, layers=layers))
        for name in FACTS - {"shape"}:  # which is a tuple or a list
            assert facts_of(rows, name) == [row.facts.get(name) for row in rows], name


def test_the_strings_of_json_become_numbers() -> None:
    stats = numbers((2,), rms="NaN", max="Infinity", min="-Infinity", hash="NaN")
    values = by_key(Manifest(entries=(entry("tensor", "t", shape=(2,), stats=stats),)))["tensor/t"].values
    assert math.isnan(values["rms"])
    assert (values["max"], values["min"], values["hash"]) == (math.inf, -math.inf, "NaN")


@pytest.mark.parametrize("wrong", ["twelve", [1], None, {}], ids=str)
def test_a_statistic_that_is_no_number_is_refused(wrong: object) -> None:
    with pytest.raises(DumpError):
        rows_of(Manifest(entries=(entry("param", "w", stats={"rms": wrong}),)))


def test_a_root_stands_before_the_layers_inside_that_are_named_without_it() -> None:
    layers = (Layer(path="Net", index=0), Layer(path="fc", index=0, parent="Net"))
    rows = rows_of(Manifest(entries=(entry("activation", "fc"), entry("activation", "Net")), layers=layers))
    assert [row.name for row in rows] == ["Net", "fc"]
