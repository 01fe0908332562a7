"""One tensor in detail."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from gradscope.dump.manifest.manifest import Cause, Ledger, LedgerLine, Manifest
from gradscope.errors import UsageError
from gradscope.presentation import Screen, TensorReport, tensor_report, to_json, to_text
from gradscope.presentation.reports.tensor import bars
from gradscope.stats import Finding
from tests.support.report_samples import PIPE, entry, one_tensor, stats_of


def report(*values: float, dtype: type = np.float32) -> TensorReport:
    stats = stats_of(np.array(values, dtype))
    manifest = Manifest(entries=(entry("param", "w", shape=(len(values),), stats=stats),))
    return tensor_report("run.npz", manifest, "param/w", ())


def text_of(report: TensorReport, screen: Screen = PIPE) -> str:
    return to_text(report, screen).plain


def histogram_of(report: TensorReport) -> list[str]:
    return text_of(report).partition("magnitude\n")[2].partition("\n\n")[0].splitlines()[1:]


def test_a_name_will_do_where_only_one_family_has_it() -> None:
    assert tensor_report("run.npz", one_tensor(), "relu", ()).row.key == "activation/relu"


def test_a_name_of_several_families_is_refused_with_the_keys() -> None:
    manifest = Manifest(entries=(entry("param", "w"), entry("param_grad", "w")))
    with pytest.raises(UsageError, match="several tensors") as error:
        tensor_report("run.npz", manifest, "w", ())
    assert error.value.hint == "give one of param/w, param_grad/w"


def test_an_unknown_key_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="no tensor 'activation/rely'") as error:
        tensor_report("run.npz", one_tensor(), "activation/rely", ())
    assert "activation/relu" in (error.value.hint or "")


def test_an_alias_shows_its_tensor() -> None:
    alias = tensor_report("run.npz", one_tensor(), "block", ())
    owner = tensor_report("run.npz", one_tensor(), "relu", ())
    assert "alias_of   activation/relu\n" in text_of(alias)
    assert histogram_of(alias) == histogram_of(owner) != []


def test_why_it_is_zero_is_said() -> None:
    cause = Cause(family="param_grad", name="w", why="is zero but for rounding: the loss does not change with it")
    entries = (entry("param", "w"), entry("param_grad", "w"))
    known = tensor_report("run.npz", Manifest(entries=entries, causes=(cause,)), "param_grad/w", ())
    assert re.search(rf"^why zero +{cause.why}$", text_of(known), re.MULTILINE)
    assert json.loads(to_json(known))["rows"][0]["why_zero"] == cause.why
    other = tensor_report("run.npz", Manifest(entries=entries, causes=(cause,)), "param/w", ())
    assert "why zero" not in text_of(other)


def test_what_was_found_in_it_is_said() -> None:
    found = [
        Finding(rule="dead", name=name, family="activation", why="has dead units", source=None, iteration=())
        for name in ("relu", "other")
    ]
    text = text_of(tensor_report("run.npz", one_tensor(), "block", found))
    assert text.count("dead  has dead units\n") == 1


def test_an_absent_tensor_shows_the_reason_and_has_no_histogram() -> None:
    why = "round at model.py:3, constant wherever it has a derivative"
    missing = LedgerLine(family="param_grad", name="w", reason="disconnected", detail=why)
    manifest = Manifest(entries=(entry("param_grad", "w", absent="disconnected"),), ledger=Ledger(missing=(missing,)))
    report = tensor_report("run.npz", manifest, "w", ())
    assert f"absent      disconnected\nwhy absent  {why}\n" in text_of(report)
    assert json.loads(to_json(report))["rows"][0]["detail"] == why
    assert "magnitude" not in text_of(report)


def test_an_integer_or_empty_tensor_has_no_histogram() -> None:
    assert histogram_of(report(1, 2, dtype=np.int32)) == []
    assert histogram_of(report()) == []


def test_zeros_infinities_and_nan_have_bars_only_where_there_are_some() -> None:
    labels = [line.split("  ")[0].strip() for line in histogram_of(report(0.0, 1.5, np.inf, -np.inf, np.nan))]
    assert labels == ["0", "2^0 .. 2^1", "inf", "nan"]
    assert [line.split("  ")[0] for line in histogram_of(report(1.5, 3.0))] == ["2^0 .. 2^1", "2^1 .. 2^2"]


def test_a_histogram_of_two_thousand_octaves_fits_a_screen_and_loses_no_element() -> None:
    lines = histogram_of(report(5e-324, 1e-300, 1e-5, 1.0, 1e300, dtype=np.float64))
    assert len(lines) <= 32
    counts = [int(re.split(r"  +", line)[1]) for line in lines]
    assert sum(counts) == 5


def test_json_has_the_histogram_by_octave() -> None:
    (row,) = json.loads(to_json(report(1.5, 3.0, 3.5)))["rows"]
    assert row["octaves"] == [[0, 1], [1, 2]]


def test_bars_show_every_count_but_zero() -> None:
    assert bars([0, 1, 500, 1000], 4, unicode=True) == ["", "▏", "██", "████"]
    assert bars([0, 1, 500, 1000], 4, unicode=False) == ["", "#", "##", "####"]
    assert bars([0, 0], 4, unicode=True) == ["", ""]
    assert bars([], 4, unicode=True) == []
