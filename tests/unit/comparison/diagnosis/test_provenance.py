"""Provenance differences: the usual culprits on top."""

from __future__ import annotations

from gradscope.comparison.diagnosis.runs.run_differences import mode_difference, provenance_differences


def test_equal_runs_differ_in_nothing() -> None:
    facts = {"versions": {"jax": "0.10.2"}, "seed": 0}
    assert provenance_differences(facts, facts) == ()


def test_culprits_come_before_circumstances() -> None:
    ref = {
        "argv": ["a"],
        "batch_sha256": "1",
        "seed": 0,
        "matmul_precision": "default",
        "device": "x",
        "versions": {"jax": "1"},
    }
    cand = {
        "argv": ["b"],
        "batch_sha256": "2",
        "seed": 1,
        "matmul_precision": "high",
        "device": "y",
        "versions": {"jax": "2"},
    }
    assert [difference["field"] for difference in provenance_differences(ref, cand)] == [
        "versions.jax", "device", "matmul_precision", "seed", "batch_sha256", "argv",
    ]  # fmt: skip


def test_a_field_that_one_side_lacks_has_one_value() -> None:
    found = provenance_differences(
        {"seed": 0, "versions": {"jax": "1"}}, {"seed": 0, "versions": {"jax": "1", "flax": "2"}}
    )
    assert found == ({"field": "versions.flax", "cand": "2"},)


def test_the_mode_is_told_where_both_state_it_and_pytorch_calls_it_otherwise() -> None:
    words = "The reference ran in training mode, and the candidate in evaluation mode"
    assert mode_difference(provenance_differences({"training": True}, {"train": False})) == words
    assert mode_difference(provenance_differences({"train": True}, {"train": False})) == words
    assert provenance_differences({"training": True}, {"train": True}) == ()
    for unstated in ({"train": None}, {"seed": 0}):
        assert not mode_difference(provenance_differences({"training": True}, unstated))
