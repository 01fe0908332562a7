"""How numbers read: short, aligned, never rounded to a lie."""

from __future__ import annotations

import math

import pytest

from gradscope.presentation.tables.numbers import Range, amount, count, number, number_column, share, share_column


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (-0.0, "-0"),
        (1.0, "1.00"),
        (0.9996, "1.00"),
        (-12.345, "-12.3"),
        (1234.5, "1234"),
        (0.001, "0.00100"),
        (9999.4, "9999"),
        (9999.6, "1.00e+04"),
        (0.00099, "9.90e-04"),
        (1e-320, "1.00e-320"),
        (5e-324, "4.94e-324"),
        (1.7976931348623157e308, "1.80e+308"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        (math.nan, "nan"),
        (7, "7"),
        (123456789, "123456789"),
    ],
)
def test_a_number_has_three_digits_and_an_integer_all_of_its_own(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0%"),
        (1e-300, "<0.1%"),
        (0.000999, "<0.1%"),
        (0.001, "0.1%"),
        (0.5, "50.0%"),
        (0.999, "99.9%"),
        (0.99901, ">99.9%"),
        (1.0, "100%"),
        (math.nan, "nan%"),
    ],
)
def test_a_share_is_0_or_100_percent_only_when_it_is_exact(value: float, text: str) -> None:
    assert share(value) == text


def test_counts_are_grouped_in_thousands() -> None:
    assert count(25_557_032) == "25,557,032"


def test_a_column_is_aligned_at_the_decimal_point() -> None:
    assert number_column([1.5, 0.0123, None, 12.34, 0.0, math.nan]) == [
        " 1.5000",
        " 0.0123",
        "       ",
        "12.3400",
        " 0     ",
        "    nan",
    ]


def test_the_numbers_of_a_column_have_as_many_decimals() -> None:
    assert number_column([22.64, 0.0144, 1.44123]) == ["22.6400", " 0.0144", " 1.4412"]


def test_a_column_that_would_take_too_many_decimals_has_exponents() -> None:
    assert number_column([2264.0, 0.0144]) == ["2.26e+03", "1.44e-02"]


def test_a_range_whose_ends_read_alike_is_one_number() -> None:
    assert number_column([Range(1.0001, 1.0002), Range(0.5, 1.0)]) == ["1.000       ", "0.500..1.000"]


def test_one_number_that_needs_an_exponent_gives_one_to_all() -> None:
    assert number_column([1.5, 2e-9, 0.0]) == ["1.50e+00", "2.00e-09", "0       "]


def test_percent_signs_stand_above_each_other() -> None:
    assert share_column([0.0, 0.123, 1e-9, 1.0]) == ["   0%", "12.3%", "<0.1%", " 100%"]


def test_a_range_shows_both_of_its_ends() -> None:
    assert number_column([Range(0.5, 12.0), 3.0, None]) == ["0.500..12.000", "3.000        ", "             "]


def test_a_column_of_nothing_is_blank() -> None:
    assert number_column([None, None]) == ["", ""]
    assert number_column([]) == []


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (0, "0"),
        (7, "7"),
        (999, "999"),
        (1000, "1.00 k"),
        (25_557_032, "25.6 M"),
        (999_499, "999 k"),
        (999_500, "1.00 M"),
        (15_982_761_572, "16.0 G"),
        (10**21, "1000 E"),
    ],
)
def test_an_amount_has_three_digits_and_a_prefix(value: int, written: str) -> None:
    assert amount(value) == written
