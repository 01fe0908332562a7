"""`explain` says of every name what the tables of the program say of it."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from gradscope.comparison import result
from gradscope.comparison.judging import rows
from gradscope.comparison.metrics.metrics import METRICS
from gradscope.comparison.pairing import matching
from gradscope.dump.manifest.reasons import REASONS
from gradscope.dump.manifest.zero_reasons import ZERO_REASONS
from gradscope.history.alarms.alarm_rules import RULES as ALARMS
from gradscope.history.schema import NOISE, STATS, STEPS
from gradscope.proof import claims, proving
from gradscope.stats import COLUMNS, RULES
from tests.integration.command import gradscope, in_terminal

TABLES = {
    "column": COLUMNS, "metric": METRICS, "finding": RULES, "reason": REASONS, "zero": ZERO_REASONS, "alarm": ALARMS
}  # fmt: skip


@pytest.mark.parametrize("kind", TABLES)
def test_every_name_of_the_program_is_explained_by_its_own_text(tmp_path: Path, kind: str) -> None:
    for spec in TABLES[kind]:
        rows = gradscope("explain", spec.name, "--json", folder=tmp_path).json["rows"]
        (row,) = [row for row in rows if (row["kind"], row["name"]) == (kind, spec.name)]
        assert row["what"] == spec.sentence.replace("`", "")
        if getattr(spec, "remedy", ""):
            assert row["do"] == spec.remedy
        if getattr(spec, "unit", ""):
            assert row["unit"] == spec.unit.replace("`", "")


def test_every_status_and_verdict_of_the_program_is_explained(tmp_path: Path) -> None:
    literals = {"verdict": result.Verdict, "status": rows.Status, "pass": matching.MatchedBy,
                "proof": proving.Verdict, "outcome": claims.Status}  # fmt: skip
    known = gradscope("explain", "--json", folder=tmp_path).json["rows"]
    for kind, literal in literals.items():
        assert {row["name"] for row in known if row["kind"] == kind} == set(get_args(literal))
        assert all(row["what"] for row in known)


def test_every_number_of_a_history_is_explained_as_its_table_of_units_says(tmp_path: Path) -> None:
    known = gradscope("explain", "--json", folder=tmp_path).json["rows"]
    meanings = {row["name"]: row["what"].lower().rstrip(".") for row in known if row["kind"] == "series"}
    assert meanings == {
        name: meaning.lower() for table in (STEPS, STATS, NOISE) for name, (_, meaning) in table.items()
    }


def test_words_of_a_name_need_no_quotes(tmp_path: Path) -> None:
    for words in (["dead", "units"], ["Dead units"], ["zero", "but", "for", "rounding"]):
        assert gradscope("explain", *words, folder=tmp_path).output.startswith(" ".join(words).casefold())


def test_a_name_may_have_another_case_or_a_type(tmp_path: Path) -> None:
    assert gradscope("explain", "RMS", folder=tmp_path).output.startswith("rms: a column")
    assert "underflow@T: a column" in gradscope("explain", "underflow@float16", folder=tmp_path).output


def test_an_unknown_name_gets_the_nearest(tmp_path: Path) -> None:
    done = gradscope("explain", "vanish", folder=tmp_path)
    assert done.status == 2
    assert done.lines[1].startswith("hint: did you mean vanishing")


def test_without_a_name_all_are_listed(tmp_path: Path) -> None:
    shown = in_terminal("explain", folder=tmp_path, columns=80)
    lines = [line for line in shown.plain.splitlines() if line and not line.startswith(" ")]
    names = [spec.name for table in TABLES.values() for spec in table]
    assert [name for name in names if not any(f"{line} ".startswith(f"{name} ") for line in lines)] == []


@pytest.mark.parametrize("rule", [rule.name for rule in RULES if rule.thresholds])
def test_a_finding_states_its_thresholds(tmp_path: Path, rule: str) -> None:
    (row,) = [
        row
        for row in gradscope("explain", rule, "--json", folder=tmp_path).json["rows"]
        if row["kind"] == "finding"
    ]  # fmt: skip
    assert " = " in row["threshold"]
