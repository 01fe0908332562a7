"""Default tolerances: the table of the documentation, and what counts as a reduced precision."""

from __future__ import annotations

import pytest

from gradscope.comparison.default_tolerances import default_tolerance, reduced_matmul
from gradscope.comparison.precision import (
    coarser,
    comparable,
    small_magnitude,
    ulp_allowance,
)


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [
        ("float64", 1e-10), ("float32", 1e-4), ("float16", 5e-3), ("bfloat16", 2e-2), ("float8_e4m3fn", 1e-1),
        ("float8_e5m2", 1e-1), ("complex64", 1e-4), ("complex128", 1e-10), ("int32", 0), ("bool", 0), ("key<fry>", 0),
    ],
)  # fmt: skip
def test_the_defaults_by_dtype(dtype: str, tolerance: float) -> None:
    assert default_tolerance("activation", dtype, dtype, reduced=False) == tolerance
    assert default_tolerance("param_grad", dtype, dtype, reduced=False) == 5 * tolerance


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("float32", "float64", "float32"), ("float16", "bfloat16", "bfloat16"), ("bfloat16", "float32", "bfloat16"),
        ("float8_e4m3fn", "float8_e5m2", "float8_e5m2"), ("complex64", "complex128", "float32"),
    ],
)  # fmt: skip
def test_the_coarser_dtype_has_fewer_bits_of_significand(one: str, other: str, expected: str) -> None:
    assert coarser(one, other) == coarser(other, one) == expected


@pytest.mark.parametrize("family", ["activation_grad", "param_grad", "input_grad"])
def test_every_gradient_family_has_five_times_the_tolerance(family: str) -> None:
    assert default_tolerance(family, "float32", "float64", reduced=False) == 5e-4


@pytest.mark.parametrize("family", ["activation", "param", "input", "state", "update", "slot/momentum", "tensor"])
def test_no_other_family_has(family: str) -> None:
    assert default_tolerance(family, "float32", "float64", reduced=False) == 1e-4


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float32", 2e-2), ("complex64", 2e-2), ("float64", 1e-10), ("float16", 5e-3)]
)
def test_reduced_precision_is_about_float32_alone(dtype: str, tolerance: float) -> None:
    assert default_tolerance("activation", dtype, dtype, reduced=True) == tolerance


@pytest.mark.parametrize(
    ("precision", "backend", "reduced"),
    [
        ("bfloat16", "cpu", True), ("tensorfloat32", "gpu", True), ("BF16_BF16_F32", "gpu", True),
        ("fastest", "cpu", True),
        ("BF16_BF16_F32_X3", "gpu", False), ("bfloat16_3x", "tpu", False), ("highest", "tpu", False),
        ("float32", "gpu", False),
        ("default", "cpu", False), ("default", "gpu", True), ("high", "tpu", True), ("high", "cpu", False),
    ],
)  # fmt: skip
def test_what_counts_as_reduced(precision: str, backend: str, reduced: bool) -> None:
    assert reduced_matmul({"matmul_precision": precision, "backend": backend}) is reduced


def test_a_file_without_provenance_is_not_reduced() -> None:
    assert reduced_matmul({}) is False


def test_small_is_half_of_the_digits_of_wide_types_and_all_of_narrow_ones() -> None:
    assert {name: small_magnitude(name) for name in ("float64", "float32", "float16", "bfloat16")} == {
        "float64": 2**-26, "float32": 2**-14, "float16": 2**-11, "bfloat16": 2**-8,
    }  # fmt: skip


def test_the_ulp_allowance_is_by_width() -> None:
    names = ("float8_e5m2", "float16", "bfloat16", "float32", "float64")
    assert [ulp_allowance(name) for name in names] == [1, 1, 1, 32, 32]


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("float32", "bfloat16", True), ("int4", "int64", True), ("uint8", "int8", True), ("uint64", "uint8", True),
        ("uint64", "int8", False), ("float32", "int32", False), ("float32", "complex64", False),
        ("bool", "uint8", False),
        ("key<fry>", "key<rbg>", False), ("key<fry>", "key<fry>", True), ("float0", "float32", False),
    ],
)  # fmt: skip
def test_what_can_be_subtracted(one: str, other: str, expected: bool) -> None:
    assert comparable(one, other) is comparable(other, one) is expected
