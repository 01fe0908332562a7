"""The JSON of `check` has what messages say beside the table."""

from __future__ import annotations

from gradscope.presentation import ProofReport


def test_json_has_the_notes_and_the_places_of_stopped_values_where_there_are_any() -> None:
    stopped = [f"net.py:{line}" for line in range(1, 9)]
    report = ProofReport(target="net.py", verdict="correct", claims=[], notes=["a sentence"], stopped=stopped)
    found = report.to_json()
    assert (found["notes"], found["stopped"]) == (["a sentence"], stopped)
    assert not {"notes", "stopped"} & ProofReport(target="net.py", verdict="correct", claims=[]).to_json().keys()
