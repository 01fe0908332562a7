"""`1-cos` against exact rational arithmetic, on vectors whose directions agree in every digit of a naive cosine."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from gradscope.comparison.metrics.block_pairs import block_pairs
from gradscope.comparison.metrics.measure_pair import measure
from gradscope.comparison.metrics.metrics import Metrics
from gradscope.comparison.precision import scale_of

Array = np.ndarray[Any, Any]


def exact_one_minus_cosine(a: Array, b: Array) -> float:
    """`1 - c = (1 - c^2) / (1 + c)`, where numerator and denominator of `1 - c^2` are exact."""
    ref, cand = ([Fraction(float(x)) for x in side] for side in (a, b))
    aa, bb = (sum(x * x for x in side) for side in (ref, cand))
    ab = sum(x * y for x, y in zip(ref, cand, strict=True))
    cosine = math.copysign(math.sqrt(ab * ab / (aa * bb)), ab)
    return float((aa * bb - ab * ab) / (aa * bb)) / (1 + cosine) if ab > 0 else 1 - cosine


def metrics(a: Array, b: Array) -> Metrics:
    return measure(block_pairs([a], [b]), scale_of(a.dtype.name, b.dtype.name, rtol=0, atol=0))


def nearly_parallel(dtype: Any, scale: float, noise: float) -> tuple[Array, Array]:
    generator = np.random.default_rng(2)
    a = generator.standard_normal(1500).astype(dtype)
    return a, (a * scale * (1 + noise * generator.standard_normal(a.size))).astype(dtype)


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1, 1 + 1e-5, 1.5, 0.1, 1e-6, 1e6, -1])
@pytest.mark.parametrize("noise", [1e-1, 1e-4, 1e-7])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_single_precision_and_below_are_right_to_thirteen_digits(dtype: Any, scale: float, noise: float) -> None:
    a, b = nearly_parallel(dtype, min(scale, 1e3), noise)
    assert metrics(a, b).alignment.one_minus_cosine == pytest.approx(exact_one_minus_cosine(a, b), rel=1e-13)


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1 + 1e-5, 1.5, 1e-6, 1e6])
@pytest.mark.parametrize("noise", [1e-1, 1e-4, 1e-7, 1e-12])
def test_the_sine_of_double_precision_is_right_to_its_last_digits(scale: float, noise: float) -> None:
    a, b = nearly_parallel(np.float64, scale, noise)
    found, exact = metrics(a, b).alignment.one_minus_cosine, exact_one_minus_cosine(a, b)
    assert math.sqrt(2 * found) == pytest.approx(math.sqrt(2 * exact), abs=1e-15)


@pytest.mark.parametrize("noise", [1e-4, 1e-8, 1e-12])
def test_a_small_difference_has_an_exact_direction_in_double_precision_too(noise: float) -> None:
    a, b = nearly_parallel(np.float64, 1, noise)
    assert metrics(a, b).alignment.one_minus_cosine == pytest.approx(exact_one_minus_cosine(a, b), rel=1e-13)


def test_one_element_of_many_iterations_the_vector() -> None:
    a = np.ones(200_000, np.float32)
    b = a.copy()
    b[77] = np.nextafter(b[77], np.float32(2))
    step = 2.0**-23
    across = step**2 * (1 - 1 / a.size) / a.size
    assert metrics(a, b).alignment.one_minus_cosine == pytest.approx(across / 2, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("cut", [1, 2, 750, 1499])
@pytest.mark.parametrize("scale", [1, 1.5, -1])
def test_parts_of_different_slope_merge_to_the_angle_of_the_vectors(cut: int, scale: float) -> None:
    a, b = nearly_parallel(np.float32, 1, 1e-6)
    b[:cut] *= np.float32(scale)
    merged = metrics(a[:cut], b[:cut]) + metrics(a[cut:], b[cut:])
    assert merged.alignment.one_minus_cosine == pytest.approx(exact_one_minus_cosine(a, b), rel=1e-12)


@pytest.mark.parametrize("ratio", [1e-12, 1e-6, 1.0, 1e6, 1e12])
def test_vectors_at_right_angles_and_of_unlike_length(ratio: float) -> None:
    a, b = np.array([1.0, 1.0, 0.0]), ratio * np.array([1.0, -1.0, 1.0])
    assert metrics(a, b).alignment.one_minus_cosine == pytest.approx(1, abs=1e-15)
