"""`explain` says of every name what the tables of the program say of it."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import get_args

import pytest

from gradscope.comparison import result
from gradscope.comparison.judging import rows
from gradscope.comparison.metrics.metrics import METRICS
from gradscope.comparison.pairing import matching
from gradscope.dump.manifest.reasons import REASONS
from gradscope.dump.manifest.zero_reasons import ZERO_REASONS
from gradscope.errors import UsageError
from gradscope.history.alarms.alarm_rules import RULES as ALARMS
from gradscope.history.database.schema import NOISE, STATS, STEPS
from gradscope.history.views.learning import LEARNING_WORDS
from gradscope.presentation import MAY_BE_MEANT
from gradscope.presentation.reports.explaining.explanation import explained_names, explanation_report
from gradscope.proof import claims, proving
from gradscope.stats import COLUMNS, RULES
from tests.integration.command import gradscope, in_terminal

PACKAGE = Path(result.__file__).parents[1]
PRESENTATION = PACKAGE / "presentation"

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


def _printed_words() -> set[str]:
    """The labels of notes and the headings of columns that the reports have in their source."""
    found: set[str] = set()
    for path in PRESENTATION.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = {
            node.target.id: node.value
            for node in ast.walk(tree) if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        }  # fmt: skip
        for node in ast.walk(tree):
            texts: list[ast.expr | None] = []
            made = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
            if isinstance(node, ast.Call) and made in {"Note", "Column", "column"}:
                texts = [each.value for each in node.keywords if each.arg in {"label", "heading", "group"}]
                texts += node.args[:1] if made == "column" else []
            elif isinstance(node, ast.Call) and made == "Notes":
                texts = [each.value for each in node.keywords if each.arg == "title"]
            elif "page" in path.parts:  # what it yields are the keys of its content
                continue
            elif isinstance(node, ast.Yield) and isinstance(node.value, ast.Tuple):  # a label and its text
                texts = [node.value.elts[0]]
            known = (names.get(each.id) if isinstance(each, ast.Name) else each for each in texts)
            found |= {each.value for each in known if isinstance(each, ast.Constant) and isinstance(each.value, str)}
    return found - {""}


@pytest.mark.slow
def test_every_label_and_heading_of_a_report_is_explained() -> None:
    printed, known = _printed_words(), {name.casefold() for name in explained_names()}
    assert {"verdict", "not counted", "of median", "hashes"} <= printed
    assert sorted(each for each in printed if each.casefold() not in known) == []


#: Words of sentences, each with the text of the program that says it.
SAID = {
    "made anew": "error is made anew at", "absent": "is absent", "not counted": 'label="not counted"',
    "joined": '"joined"', "added up": '"added up"', "made here": ", made here", "before LAYER": "before {layer}",
    "follow from that": "'follow'} from that", "backward only": '"Backward only', "captured": " captured",
}  # fmt: skip


def test_words_of_sentences_are_explained_and_still_said(tmp_path: Path) -> None:
    files = (path for path in PACKAGE.rglob("*.py") if path.name != "printed_words.py")
    source = "".join(path.read_text(encoding="utf-8") for path in files)
    assert [word for word, said in SAID.items() if said not in source] == []
    assert SAID.keys() <= {*explained_names()}
    assert gradscope("explain", "before", folder=tmp_path).output.startswith("before LAYER: a word in reports\n")


def test_words_of_a_name_need_no_quotes(tmp_path: Path) -> None:
    for words in (["dead", "units"], ["Dead units"], ["zero", "but", "for", "rounding"]):
        assert gradscope("explain", *words, folder=tmp_path).output.startswith(" ".join(words).casefold())


def test_a_name_may_have_another_case_or_a_type(tmp_path: Path) -> None:
    assert gradscope("explain", "RMS", folder=tmp_path).output.startswith("rms: a column")
    assert "underflow@T: a column" in gradscope("explain", "underflow@float16", folder=tmp_path).output


@pytest.mark.parametrize("written", ["learning rate", "learning-rate", "Learning_Rate"])
def test_a_name_may_have_spaces_or_hyphens(written: str) -> None:
    assert [each.name for each in explanation_report(written).explanations] == ["learning_rate"]


@pytest.mark.parametrize("key", ["slot", "slot/mu", "slot/mu/dense/kernel"])
def test_the_family_of_a_key_is_explained(key: str) -> None:
    assert [(each.kind, each.name) for each in explanation_report(key).explanations] == [("family", "slot")]


@pytest.mark.parametrize("word", [*MAY_BE_MEANT, *LEARNING_WORDS])
def test_what_a_word_fails_is_said(word: str) -> None:
    uses = [each.facts.get("use", "") for each in explanation_report(word).explanations]
    commands = "train and show of a run" if word in LEARNING_WORDS else "dump and show"
    assert any("--check" in use and f"{commands} exit 1 on it" in use for use in uses)


def test_frozen_is_explained_for_a_model_of_jax_too() -> None:
    whats = {each.kind: each.facts["what"] for each in explanation_report("frozen").explanations}
    assert "stop_gradient" in whats["word"]
    assert "optax.set_to_zero" in whats["word"]
    assert "PyTorch" in whats["reason"]


def test_an_unknown_name_gets_the_nearest(tmp_path: Path) -> None:
    done = gradscope("explain", "vanish", folder=tmp_path)
    assert done.status == 2
    assert done.lines[1].startswith("hint: did you mean vanishing")


@pytest.mark.parametrize("word", ["gather", "dot_general", "custom_vjp"])
def test_a_word_that_is_near_to_none_gets_no_names_that_are_not(word: str) -> None:
    with pytest.raises(UsageError) as raised:
        explanation_report(word)
    assert "did you mean" not in str(raised.value.hint)
    assert "jax.lax" in str(raised.value.hint)


def test_the_name_of_a_command_is_answered_by_its_help(tmp_path: Path) -> None:
    done = gradscope("explain", "check", folder=tmp_path)
    assert (done.status, done.lines[1]) == (2, "hint: 'gradscope help check' describes the command")


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
