"""Default tolerances: the table of the documentation, and what counts as a reduced precision."""

from __future__ import annotations

import pytest

from gradscope.comparison.default_tolerances import coarsest_matmul_dtype, default_tolerance, matmul_dtype
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
    assert default_tolerance("activation", dtype, dtype) == tolerance
    assert default_tolerance("param_grad", dtype, dtype) == 5 * tolerance


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
    assert default_tolerance(family, "float32", "float64") == 5e-4


@pytest.mark.parametrize("family", ["activation", "param", "input", "state", "update", "slot/momentum", "tensor"])
def test_no_other_family_has(family: str) -> None:
    assert default_tolerance(family, "float32", "float64") == 1e-4


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float32", 2e-2), ("complex64", 2e-2), ("float64", 1e-10), ("float16", 5e-3)]
)
def test_reduced_precision_is_about_float32_alone(dtype: str, tolerance: float) -> None:
    assert default_tolerance("activation", dtype, dtype, products="bfloat16") == tolerance


def test_tensorfloat32_has_the_tolerance_of_float16_which_has_its_bits() -> None:
    assert default_tolerance("activation", "float32", "float32", products="float16") == 5e-3


@pytest.mark.parametrize(
    ("precision", "backend", "dtype"),
    [
        ("bfloat16", "cpu", "bfloat16"), ("tensorfloat32", "gpu", "float16"), ("BF16_BF16_F32", "gpu", "bfloat16"),
        ("TF32_TF32_F32", "gpu", "float16"), ("F16_F16_F32", "gpu", "float16"),
        ("ANY_F8_ANY_F8_F32", "gpu", "bfloat16"),
        ("BF16_BF16_F32_X3", "gpu", "float32"), ("TF32_TF32_F32_X3", "gpu", "float32"),
        ("bfloat16_3x", "tpu", "float32"), ("highest", "tpu", "float32"), ("float32", "gpu", "float32"),
        ("default", "cpu", "float32"), ("default", "gpu", "float16"), ("default", "tpu", "bfloat16"),
        ("fastest", "cpu", "float32"), ("fastest", "gpu", "float16"),
        ("high", "cpu", "float32"), ("high", "gpu", "float16"), ("high", "tpu", "float32"),
    ],
)  # fmt: skip
def test_the_digits_of_the_factors_of_products(precision: str, backend: str, dtype: str) -> None:
    assert matmul_dtype({"matmul_precision": precision, "backend": backend}) == dtype


def test_a_file_without_provenance_has_full_products() -> None:
    assert matmul_dtype({}) == "float32"


def test_the_coarsest_of_two_runs_counts() -> None:
    gpu, cpu = ({"matmul_precision": "default", "backend": backend} for backend in ("gpu", "cpu"))
    assert coarsest_matmul_dtype(gpu, cpu) == coarsest_matmul_dtype(cpu, gpu) == "float16"
    assert coarsest_matmul_dtype(cpu, cpu) == "float32"


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
