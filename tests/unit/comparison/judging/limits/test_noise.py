"""Noise floors: errors counted in them, and judged by them."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from gradscope.comparison import CompareOptions, ToleranceRule, compare
from gradscope.comparison.judging.limits.noise import noise_floor
from gradscope.dump.manifest.manifest import Manifest
from gradscope.dump.record import Json
from gradscope.dump.sources.memory_dump import MemoryDump
from tests.unit.comparison.judging.test_verdicts import LAYERS, MODEL, NUMBERS, changed, dump, entry, off_by, row

REDUCED = {"matmul_precision": "bfloat16", "backend": "cpu"}


def calibrated(**floors: float) -> MemoryDump:
    """The model of other tests whose computed tensors have noise floors."""
    plain = dump()
    entries = (
        replace(each, stats={**each.stats, **floors}) if "activation" in each.family or "grad" in each.family else each
        for each in plain.manifest.entries
    )
    return MemoryDump(Manifest(entries=tuple(entries), layers=LAYERS), dict(MODEL))


NOISY = calibrated(**{"noise": 1e-3, "noise@bfloat16": 5e-2})


@pytest.mark.parametrize(("error", "verdict"), [(9e-3, "same"), (2e-2, "different")])
def test_ten_noise_floors_are_noise_whatever_the_default(error: float, verdict: str) -> None:
    found = compare(NOISY, dump(changed(activation__second=off_by("activation/second", error))))
    second = row(found, "activation/second")
    assert (found.verdict, second.tolerance) == (verdict, 1e-2)
    assert second.metrics["noise"] == pytest.approx(error / 1e-3, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(("floor", "limit"), [(0.02, 0.2), (0.1, 0.5), (0.51, 1.02)])
def test_of_a_large_noise_floor_fewer_are_noise(floor: float, limit: float) -> None:
    noisy = calibrated(noise=floor)
    for error in (0.99 * limit, 1.01 * limit):
        found = compare(noisy, dump(changed(activation__second=off_by("activation/second", error))))
        assert row(found, "activation/second").tolerance == pytest.approx(limit)
        assert found.verdict == ("same" if error < limit else "different")
    arrays = changed(activation__second=-MODEL["activation/second"])
    assert compare(noisy, dump(arrays)).verdict == "different", "no noise changes the sign of a whole tensor"


@pytest.mark.slow
@pytest.mark.parametrize(
    "provenance",
    [{"versions": {"jaxlib": "0.9.0"}}, {"backend": "gpu"}, {"xla_flags": "--xla_cpu_use_fusion_emitters"}],
)
def test_noise_floors_count_tenfold_for_what_another_compiler_made(provenance: dict[str, Json]) -> None:
    stated = {"versions": {"jaxlib": "0.10.2"}, "backend": "cpu", "xla_flags": ""}
    for floor, limit in ((1e-7, 1e-5), (2e-6, 1e-4), (1e-4, 1e-3)):  # up to the default tolerance, or ten floors
        noisy = calibrated(noise=floor)
        reference = MemoryDump(replace(noisy.manifest, provenance=stated), dict(MODEL))
        for own, most in ((stated, 10 * floor), (stated | provenance, limit)):
            arrays = changed(activation__second=off_by("activation/second", 5e-6))
            cand = MemoryDump(replace(dump(arrays).manifest, provenance=own), arrays)
            assert row(compare(reference, cand), "activation/second").tolerance == pytest.approx(most)


def test_sentences_count_in_noise() -> None:
    near, far = (dump(changed(activation__second=off_by("activation/second", error))) for error in (5e-3, 3.1e-2))
    assert compare(NOISY, near).sentence == "Same within noise: 7 tensors, at most 5.0x noise at `second`, bit-equal 6."
    assert "(rel_l2 3.1e-2, made here, 31x noise; it is 1.031 times the reference's)" in compare(NOISY, far).sentence


def test_the_sentence_tells_of_tensors_whose_noise_is_not_known() -> None:
    arrays = changed(activation__second=off_by("activation/second", 5e-3))
    narrow = {key: each.astype(ml_dtypes.bfloat16) if "_grad" in key else each for key, each in arrays.items()}
    sentence = compare(calibrated(noise=1e-3), dump(narrow)).sentence
    assert sentence.startswith(
        "Same within noise, as far as that is known: 7 tensors, at most 5.0x noise at `second`, "
    )
    assert " without a noise floor within tolerance, largest rel_l2 " in sentence


def test_stored_tensors_have_no_noise() -> None:
    found = compare(NOISY, dump(changed(param__first__w=off_by("param/first/w", 5e-3))))
    assert (row(found, "param/first/w").status, row(found, "param/first/w").tolerance) == ("different", 1e-4)


def test_low_precision_is_compared_with_the_noise_of_low_precision() -> None:
    narrow = {key: array.astype(ml_dtypes.bfloat16) for key, array in MODEL.items()}
    assert row(compare(NOISY, dump(narrow)), "activation/second").tolerance == 0.5
    assert row(compare(NOISY, dump(provenance=REDUCED)), "activation/second").tolerance == 0.5
    only_rounding = calibrated(noise=1e-3)
    assert "noise" not in row(compare(only_rounding, dump(narrow)), "activation/second").metrics


def test_single_precision_is_compared_with_the_noise_of_single_precision_where_the_reference_has_double() -> None:
    floors = {"noise": 1e-14, "noise@float32": 1e-6, "noise@bfloat16": 1e-2}
    double, single, narrow = (replace(entry("activation/a", NUMBERS), dtype=dtype, stats=floors)
                              for dtype in ("float64", "float32", "bfloat16"))  # fmt: skip
    assert noise_floor(double, double, reduced=False) == 1e-14
    assert noise_floor(double, single, reduced=False) == 1e-6
    assert noise_floor(double, single, reduced=True) == noise_floor(double, narrow, reduced=False) == 1e-2
    assert noise_floor(replace(double, stats={"noise": 1e-14, "noise@bfloat16": 1e-2}), single, reduced=False) is None


def test_a_requested_tolerance_goes_before_noise() -> None:
    options = CompareOptions(rules=(ToleranceRule.parse("first=noise < 2"), ToleranceRule.parse("1e-9")))
    found = compare(NOISY, dump({key: off_by(key, 1e-3) for key in MODEL}), options=options)
    assert [row(found, f"activation/{name}").status for name in ("first", "second")] == ["same", "different"]


def test_a_floor_is_never_below_the_rounding_of_elements() -> None:
    still = entry("activation/a", NUMBERS)
    assert noise_floor(replace(still, stats={"noise": 0.0}), still, reduced=False) == np.finfo(np.float32).eps / 2
    assert noise_floor(replace(still, stats={"noise": 1.0}), still, reduced=False) == 1.0
    assert noise_floor(still, still, reduced=False) is None
    assert noise_floor(replace(still, dtype="int32", stats={"noise": 1.0}), still, reduced=False) is None
