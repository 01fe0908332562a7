"""How two runs differ is told in the words of the command line, and hashes by what they are of."""

from __future__ import annotations

import pytest

from gradscope.dump.record import Json
from gradscope.presentation.reports.comparing.run_notes import provenance_notes
from gradscope.training.loop.resuming import DATA_FILE, MODEL_FILE, option_facts
from tests.support.report_samples import PIPE, TERMINAL


@pytest.mark.parametrize("verbose", [False, True])
def test_a_file_of_a_run_is_called_by_what_it_is(verbose: bool) -> None:
    ref, cand = (option_facts({MODEL_FILE: digit * 64, DATA_FILE: digit * 64, "--seed": digit}) for digit in "12")
    differences = [{"field": name, "ref": ref[name], "cand": cand[name]} for name in ref]
    notes = {each.label: each.text for each in provenance_notes(differences, PIPE, verbose=verbose)}
    files = {"model file": f"{'1' * 64} -> {'2' * 64}", "data file": f"{'1' * 64} -> {'2' * 64}"}
    hashes = {"hashes": "model file, data file (compare --verbose shows them)"}
    assert notes == {"option --seed": "1 -> 2", **(files if verbose else hashes)}


@pytest.mark.parametrize("verbose", [False, True])
def test_what_one_run_does_not_state_is_one_line(verbose: bool) -> None:
    differences: list[dict[str, Json]] = [
        {"field": "backend", "ref": "torch cpu", "cand": "cpu"},
        {"field": "argv", "ref": ["gradscope"], "cand": ["gradscope", "dump"]},
        *({"field": name, "cand": "1"} for name in ("versions.flax", "versions.jax", "x64", "train")),
        {"field": "training", "ref": "true"},
    ]
    notes = {each.label: each.text for each in provenance_notes(differences, PIPE, verbose=verbose)}
    if verbose:
        assert notes["versions.jax"] == "(unknown) -> 1"
        assert "unknown" not in notes
    else:
        assert notes == {
            "backend": "torch cpu -> cpu", "argv": "gradscope -> gradscope dump", "train": "(not given) -> 1",
            "unknown": "of the reference versions, x64; of the candidate training (compare --verbose shows them)",
        }  # fmt: skip


def test_of_a_capture_of_another_program_what_both_state_is_shown() -> None:
    differences: list[dict[str, Json]] = [
        {"field": "backend", "ref": "torch cpu", "cand": "cpu"},
        {"field": "model", "ref": "Net", "cand": "port"},
        {"field": "argv", "ref": ["capture.py"], "cand": ["gradscope", "dump", "port.py"]},
        {"field": "batch_sha256", "ref": "1" * 64, "cand": "2" * 64},
        *({"field": name, "cand": "1"} for name in ("versions.jax", "data")),
        {"field": "training", "ref": "true"},
    ]
    notes = {each.label: each.text for each in provenance_notes(differences, PIPE, verbose=False)}
    others = "model, batch_sha256; 3 facts that one side alone states (compare --verbose shows them)"
    assert notes == {"backend": "torch cpu -> cpu", "others": others}
    shown = [each.label for each in provenance_notes(differences, PIPE, verbose=True)]
    assert shown == ["backend", "model", "argv", "batch_sha256", "versions.jax", "data", "training"]


def test_command_lines_are_no_difference_by_themselves() -> None:
    differences: list[dict[str, Json]] = [
        {"field": "argv", "ref": ["gradscope", "dump", "a.py"], "cand": ["gradscope", "dump", "a.py", "-o", "b.npz"]}
    ]
    assert provenance_notes(differences, PIPE, verbose=False) == ()
    assert [each.label for each in provenance_notes(differences, PIPE, verbose=True)] == ["argv"]


def test_a_command_line_is_whole_where_the_terminal_is_narrow() -> None:
    words: list[Json] = ["gradscope", "dump", "model.py", "--select", "block[0]/attention/query", "--force"]
    differences: list[dict[str, Json]] = [
        {"field": "argv", "ref": words[:3], "cand": words},
        {"field": "seed", "ref": 0, "cand": 1},
    ]
    (note,) = (each for each in provenance_notes(differences, TERMINAL, verbose=False) if each.label == "argv")
    assert note.text == "gradscope dump model.py -> gradscope dump model.py --select 'block[0]/attention/query' --force"


def test_what_the_user_chose_is_first_and_an_option_stands_once() -> None:
    fields = ("git_commit", "backend", "versions.jax", "model_file", "option --seed", "seed", "option --optimizer",
              "option TARGET", "model")  # fmt: skip
    differences: list[dict[str, Json]] = [{"field": name, "ref": "1", "cand": "2"} for name in fields]
    shown = [each.label for each in provenance_notes(differences, PIPE, verbose=False)]
    assert shown == ["versions.jax", "seed", "option --optimizer", "model", "backend", "git_commit", "model_file"]
    assert len(provenance_notes(differences, PIPE, verbose=True)) == len(fields)
