"""Numbers in names, and runs of digits that are none."""

from __future__ import annotations

import re

import pytest

from gradscope.naming.numbering import NUMBER, number_of


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("block12/conv3", ["12", "3"]), ("9" * 18, ["9" * 18]), ("9" * 19, []), (f"a{'1' * 5000}b7", ["7"]),
        ("٣", ["٣"]), ("²", []),
    ],
)  # fmt: skip
def test_a_number_is_a_whole_run_of_at_most_eighteen_digits(text: str, numbers: list[str]) -> None:
    assert re.findall(NUMBER, text) == numbers
    assert all(number_of(number) == int(number) for number in numbers)
    assert number_of(text) == (int(text) if numbers == [text] else None)
