"""Extent: captures that did not look at the same things are said to be so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gradscope.comparison import compare
from gradscope.comparison.diagnosis.runs.run_differences import extent_differences
from gradscope.dump.manifest.manifest import Layer, Ledger, LedgerLine, Manifest
from gradscope.dump.manifest.operation_facts import Origin
from gradscope.dump.sources.memory_dump import MemoryDump
from tests.unit.comparison.judging.test_verdicts import LAYERS, MODEL, dump, stats_only

OPERATIONS = (
    *(replace(layer, primitive=None) for layer in LAYERS),
    *(
        Layer(path=f"{layer.path}/dot", index=layer.index, parent=layer.path, primitive="dot_general")
        for layer in LAYERS
    ),
)
FEWER = {key: array for key, array in MODEL.items() if "grad" not in key}
BEGAN = Origin(direction="backward", name="norm", why="sent back the first Inf: why", source="a.py:3")
FILTERED = Ledger(missing=(LedgerLine(name="third", family="activation", reason="filtered"),))


@pytest.mark.parametrize(
    ("other", "sentences"),
    [
        (dump(), ()),
        (dump(layers=OPERATIONS), ("the candidate holds every operation, the other layers only",)),
        (stats_only(), ("the candidate holds statistics and no tensors",)),
        (dump(FEWER), ("the candidate holds nothing of activation_grad, param_grad",)),
        (dump(ledger=FILTERED), ("the candidate left out 1 site by its selection, the other 0",)),
        (dump(complete=False, note="killed"), ("the candidate is incomplete: killed",)),
        (
            dump(origins=(BEGAN,)),
            ("the candidate states where a NaN or an infinity began: norm (a.py:3) sent back the first Inf: why",),
        ),
    ],
)
def test_a_sentence_states_what_one_capture_lacks(other: MemoryDump, sentences: tuple[str, ...]) -> None:
    assert extent_differences(dump(), other) == sentences
    mirrored = tuple(text.replace("the candidate", "the reference") for text in sentences)
    assert extent_differences(other, dump()) == mirrored


@pytest.mark.parametrize(("family", "option"), [("term", "--terms"), ("example_grad", "--per-example")])
def test_a_family_that_an_option_writes_is_reported_missing_in_the_other_with_the_option(
    family: str, option: str
) -> None:
    with_family = dump({**MODEL, f"{family}/second/dot.0": MODEL["activation_grad/first"]})
    assert extent_differences(dump(), with_family) == (f"the reference holds nothing of {family} (dump {option})",)
    assert extent_differences(with_family, dump()) == (f"the candidate holds nothing of {family} (dump {option})",)


def test_where_a_nan_began_is_no_difference_where_both_have_one() -> None:
    assert extent_differences(dump(origins=(BEGAN,)), dump(origins=(replace(BEGAN, why="another"),))) == ()


def test_a_foreign_file_has_no_extent_differences() -> None:
    foreign = MemoryDump(Manifest(entries=dump({"tensor/a": MODEL["param/first/w"]}).manifest.entries), {})
    assert "holds nothing of" not in " ".join(extent_differences(dump(), foreign))


@pytest.mark.slow
def test_it_is_in_json_where_there_is_a_difference() -> None:
    assert "extent_differences" not in compare(dump(), dump()).to_json()
    assert compare(dump(), stats_only()).to_json()["extent_differences"] == [
        "the candidate holds statistics and no tensors"
    ]
