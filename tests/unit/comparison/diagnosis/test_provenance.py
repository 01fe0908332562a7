"""Provenance differences: the usual culprits on top."""

from __future__ import annotations

from gradscope.comparison.diagnosis.runs.run_differences import provenance_differences


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
