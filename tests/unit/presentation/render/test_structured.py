"""JSON, CSV and Markdown: what programs and pull requests get."""

from __future__ import annotations

import csv
import io
import json
import math

import pytest

from gradscope.dump.manifest.manifest import Manifest
from gradscope.naming import printable
from gradscope.presentation import LedgerReport, to_csv, to_json, to_markdown
from tests.support.report_samples import HOSTILE_NAMES, entry, numbers, report_of, small_network


def test_json_of_a_dump_has_the_documented_keys() -> None:
    found = json.loads(to_json(report_of(small_network())))
    assert list(found) == [
        "schema", "command", "dump", "loss", "ledger", "self_check", "timings", "provenance", "complete", "tier",
        "rows", "findings",
    ]  # fmt: skip
    assert (found["schema"], found["command"], found["dump"]) == (1, "show", "run.npz")
    assert found["ledger"] == {"captured": 24, "non-differentiable": 1, "disconnected": 1}
    assert found["self_check"] == {"total": 3, "bit_equal": 2, "max_rel_l2": 3.2e-7}
    assert found["findings"][0] == {
        "rule": "dead", "name": "block1/relu", "family": "activation", "source": "net.py:14", "tensors": 1,
        "why": "has 87.5% dead units: 28 of 32 are zero at all 512 positions",
    }  # fmt: skip


def test_json_of_a_foreign_file_has_no_keys_for_what_it_lacks() -> None:
    found = json.loads(to_json(report_of(Manifest(entries=(), note="not written by gradscope"))))
    assert found["note"] == "not written by gradscope"
    assert not {"loss", "self_check"} & set(found)


def test_json_is_indented_by_two_and_ascii_whatever_the_names() -> None:
    manifest = Manifest(entries=tuple(entry("param", name) for name in HOSTILE_NAMES.values()))
    text = to_json(report_of(manifest))
    assert text.isascii()
    assert text.startswith('{\n  "schema": 1,\n  "command": "show",\n')
    assert {row["name"] for row in json.loads(text)["rows"]} == set(HOSTILE_NAMES.values())


def test_json_and_csv_spell_out_nan_and_infinities() -> None:
    stats = numbers((2,), rms=math.nan, max=math.inf, min=-math.inf)
    report = report_of(Manifest(entries=(entry("tensor", "t", shape=(2,), stats=stats),), loss=math.nan))
    found = json.loads(to_json(report))
    assert found["loss"] == "NaN"
    assert [found["rows"][0][name] for name in ("rms", "max", "min")] == ["NaN", "Infinity", "-Infinity"]
    (row,) = csv.DictReader(io.StringIO(to_csv(report)))
    assert [row[name] for name in ("rms", "max", "min")] == ["NaN", "Infinity", "-Infinity"]


def test_csv_has_every_number_in_full_and_nothing_where_none_applies() -> None:
    stats = numbers((2, 4), rms=0.1 + 0.2)
    report = report_of(Manifest(entries=(entry("param", "w", stats=stats), entry("param", "v", absent="filtered"))))
    one, other = csv.DictReader(io.StringIO(to_csv(report)))
    assert float(one["rms"]) == 0.1 + 0.2
    assert json.loads(one["shape"]) == [2, 4]
    assert other["rms"] == ""


def test_csv_of_nothing_is_a_heading() -> None:
    assert to_csv(report_of(Manifest(entries=()))) == "name,family\n"


@pytest.mark.parametrize(
    ("name", "cell"),
    [
        ("a|b", "`a\\|b`"),
        ("embed#2", "`embed#2`"),
        ("tick`", "`` tick` ``"),
        ("``two``", "``` ``two`` ```"),
        ("\x1b[2J", "`\\x1b[2J`"),
    ],
)
def test_a_name_in_markdown_is_one_cell_of_code(name: str, cell: str) -> None:
    text = to_markdown(report_of(Manifest(entries=(entry("param", name),))))
    assert f"\n| {cell} | " in text


def test_a_long_table_is_folded_in_markdown_and_a_short_one_is_not() -> None:
    entries = tuple(entry("param", f"w{number}") for number in range(40))
    long, short = (to_markdown(report_of(Manifest(entries=each))) for each in (entries, entries[:20]))
    assert "<details>\n<summary>Parameters (40)</summary>\n\n| name |" in long
    assert long.count("</details>") == 1
    assert "<details>" not in short


def test_markdown_outside_of_code_is_escaped() -> None:
    text = to_markdown(report_of(Manifest(entries=(), note="see <b> #1 @you *now*")))
    assert "- **note** see \\<b\\> \\#1 \\@you \\*now\\*\n" in text


def test_the_ledger_as_json_and_csv() -> None:
    report = LedgerReport(path="run.npz", manifest=small_network())
    found = json.loads(to_json(report))
    assert found["rows"][0] == {
        "name": "label", "family": "input_grad", "reason": "non-differentiable", "detail": "int32",
    }  # fmt: skip
    assert to_csv(report).splitlines()[2] == "spare/kernel,param_grad,disconnected,"


@pytest.mark.parametrize(
    "name",
    [
        *("=1+1", "@SUM(A1)", "+A1", "-A1", "-", "\t=1", "\r=1"),
        *("-1+A1", "+1-cmd|' /C calc'!A0", "-.", "-1e", "-1 ", "-\u0661"),
    ],
)
def test_csv_has_formulas_as_text(name: str) -> None:
    (row,) = csv.DictReader(io.StringIO(to_csv(report_of(Manifest(entries=(entry("param", name),))))))
    assert row["name"] == "'" + printable(name)


@pytest.mark.parametrize("name", ["-1", "+.5", "-2.", "-2.5e3", "+1E-4", "a=1", "w@0", ""])
def test_csv_leaves_numbers_and_other_text_alone(name: str) -> None:
    (row,) = csv.DictReader(io.StringIO(to_csv(report_of(Manifest(entries=(entry("param", name),))))))
    assert row["name"] == name
