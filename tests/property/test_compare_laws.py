"""Laws of the metrics: what must hold for any pair of tensors."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gradscope.comparison.metrics.block_pairs import block_pairs
from gradscope.comparison.metrics.measure_pair import measure
from gradscope.comparison.metrics.metrics import Metrics
from gradscope.comparison.pairing.by_path import by_path
from gradscope.comparison.pairing.matching import Dumps, by_name, by_order, pair
from gradscope.comparison.pairing.values.by_values import by_fingerprint
from gradscope.comparison.precision import scale_of
from gradscope.dump.manifest.manifest import Entry, Manifest
from gradscope.dump.record import SiteFacts
from gradscope.dump.sources.memory_dump import MemoryDump
from gradscope.naming import split_key

Array = np.ndarray[Any, Any]
DTYPES = [
    np.float32,
    np.float64,
    np.float16,
    ml_dtypes.bfloat16,
    ml_dtypes.float8_e5m2,
    np.complex64,
    np.int32,
    np.bool_,
]
ANY_FLOAT = st.floats(width=32)
ROUNDED = ("rel_l2", "1-cos", "norm_ratio", "sqnr_db")


def assert_same_but_for_rounding(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name in expected.keys() & ROUNDED:
        # The logarithm of a ratio near 1 is as exact as the ratio is.
        least = 1e-13 if name == "sqnr_db" else 1e-30
        assert found.pop(name) == pytest.approx(expected.pop(name), rel=1e-9, abs=least), name
    assert found == expected


def measured(a: Array, b: Array) -> Metrics:
    scale = scale_of(a.dtype.name, b.dtype.name, rtol=1e-3, atol=1e-6)
    return measure(block_pairs([a], [b]), scale)


def columns(a: Array, b: Array) -> dict[str, Any]:
    return measured(a, b).columns(a.shape)


@st.composite
def pairs(draw: st.DrawFn, elements: st.SearchStrategy[float] = ANY_FLOAT) -> tuple[Array, Array]:
    """Two tensors that agree in part, with NaNs, infinities, zeros and subnormals among the rest."""
    dtype = draw(st.sampled_from(DTYPES))
    size = draw(st.integers(1, 40))
    values = hnp.arrays(np.float32, size, elements=elements)
    a, b, agree = draw(values), draw(values), draw(hnp.arrays(np.bool_, size))
    with np.errstate(all="ignore"):
        return a.astype(dtype), np.where(agree, a, b).astype(dtype)


@given(pairs())
def test_a_tensor_is_bit_equal_to_itself(tensors: tuple[Array, Array]) -> None:
    found = columns(tensors[0], tensors[0].copy())
    zeros = ("rel_l2", "1-cos", "max_abs", "mismatch", "nonfinite_mismatch")
    assert found["bit_equal"] is True
    assert found["norm_ratio"] == 1
    assert all(found[name] == 0 for name in zeros)


@given(pairs(), st.data())
def test_metrics_merge_over_any_chunking(tensors: tuple[Array, Array], data: st.DataObject) -> None:
    a, b = tensors
    cuts = sorted({0, a.size, *data.draw(st.lists(st.integers(0, a.size), max_size=4))})
    parts = [measured(a[start:stop], b[start:stop]) for start, stop in pairwise(cuts)]
    total = parts[0]
    for part in parts[1:]:
        total += part
    full, merged = columns(a, b), total.columns(a.shape)
    assert_same_but_for_rounding(merged, full)


@given(pairs(), st.integers(1, 7), st.integers(1, 7))
def test_each_tensor_may_have_its_own_chunks(tensors: tuple[Array, Array], one: int, other: int) -> None:
    a, b = tensors
    scale = scale_of(a.dtype.name, b.dtype.name, rtol=1e-3, atol=1e-6)

    def cut(side: Array, size: int) -> list[Array]:
        return [side[start : start + size] for start in range(0, side.size, size)]

    chunked = measure(block_pairs(cut(a, one), cut(b, other)), scale).columns(a.shape)
    full = columns(a, b)
    assert_same_but_for_rounding(chunked, full)


@given(pairs())
def test_swapping_the_tensors_keeps_the_metrics_of_the_difference(tensors: tuple[Array, Array]) -> None:
    a, b = tensors
    there, back = columns(a, b), columns(b, a)
    for name in ("max_abs", "max_abs_index", "ulp_max", "ulp_share", "nonfinite_mismatch", "bit_equal"):
        assert there.get(name) == back.get(name)
    assert there.get("max_abs_ref") == back.get("max_abs_cand")
    assert there.keys() == back.keys()
    if "1-cos" in there:  # nothing is finite on both sides otherwise
        assert there["1-cos"] == pytest.approx(back["1-cos"], rel=1e-9, abs=1e-15)


@given(pairs(elements=st.floats(-8, 8, width=16)), st.integers(-20, 20))
def test_scaling_both_tensors_by_a_power_of_two_keeps_ratios(tensors: tuple[Array, Array], power: int) -> None:
    a, b = (side.real.astype(np.float64) for side in tensors)
    plain, scaled = columns(a, b), columns(np.ldexp(a, power), np.ldexp(b, power))
    for name in ROUNDED:
        assert scaled[name] == plain[name]
    assert scaled["max_abs"] == np.ldexp(plain["max_abs"], power)


keys = st.lists(st.sampled_from([f"activation/{letter}" for letter in "abcdefgh"]), unique=True)


@given(keys, keys)
def test_every_key_of_either_side_is_in_a_pairing_exactly_once(ref: list[str], cand: list[str]) -> None:
    names = [split_key(key) for key in (*ref, *cand)]
    entries = [
        Entry(family=family, name=name, shape=(), dtype="float32", stats={}, site=SiteFacts(index=0))
        for family, name in names
    ]
    sources = [MemoryDump(Manifest(entries=tuple(part)), {}) for part in (entries[: len(ref)], entries[len(ref) :])]
    found = pair(Dumps(ref=sources[0], cand=sources[1]), (by_name, by_path, by_order, by_fingerprint))
    assert sorted([*(match.ref for match in found.matched), *found.only_ref]) == sorted(ref)
    assert sorted([*(match.cand for match in found.matched), *found.only_cand]) == sorted(cand)
    assert all(match.ref == match.cand and match.matched_by == "name" for match in found.matched)
