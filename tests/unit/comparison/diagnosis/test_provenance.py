"""Provenance differences: the usual culprits on top."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gradscope.comparison import compare
from gradscope.comparison.diagnosis.runs.run_differences import mode_difference, provenance_differences
from gradscope.dump.sources.memory_dump import MemoryDump
from tests.support.dumps import dump_of


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


def _run(drawn: int, **facts: Any) -> MemoryDump:
    draw = np.random.default_rng(drawn).normal
    tensors = {"input/x": draw(size=(4, 3)), "param/w": draw(size=(3, 2))}
    return MemoryDump(replace(dump_of(tensors).manifest, provenance={"seed": 0, **facts}), tensors)


@pytest.mark.parametrize(("ref", "cand", "name"), [(True, False, "reference"), (False, True, "candidate")])
def test_other_draws_under_x64_are_told_with_what_to_do(ref: bool, cand: bool, name: str) -> None:
    sentence = compare(_run(0, x64=ref), _run(1, x64=cand)).sentence
    other = {"reference": "candidate", "candidate": "reference"}[name]
    assert sentence.startswith(f"The {name} was made with `--x64`, with which JAX draws other random numbers. ")
    assert sentence.endswith(
        f" Give it those of the {other}, whose dump is a file for `--checkpoint` and for `--data`."
    )


def test_nothing_is_said_of_draws_that_are_no_reason() -> None:
    for ref, cand in (
        (_run(0, x64=True), _run(1, x64=True)),
        (_run(0, x64=True, checkpoint="saved.npz"), _run(1, x64=False)),
        (_run(0, x64=True, seed=None), _run(1, x64=False)),
    ):
        assert "draws" not in compare(ref, cand).sentence
