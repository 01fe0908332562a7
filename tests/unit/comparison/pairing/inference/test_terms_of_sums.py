"""Pairs of numbers that add up to a total are found without trying all of them."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from gradscope.comparison.pairing.inference.terms_of_sums import pairs_adding_up


@pytest.mark.parametrize("seed", range(20))
def test_pairs_are_those_that_add_up_the_first_ones_first(seed: int) -> None:
    random = np.random.default_rng(seed)
    numbers = random.integers(-3, 4, random.integers(0, 9)) + 1e-9 * (seed % 3) * random.normal()
    numbers[: seed % 2] = np.nan
    total = float(random.integers(-4, 5))
    expected = [
        pair for pair in combinations(range(numbers.size), 2) if abs(sum(numbers[each] for each in pair) - total) < 1e-6
    ]
    assert list(pairs_adding_up(numbers, total)) == expected


def test_no_pair_has_one_number_twice() -> None:
    assert list(pairs_adding_up(np.array([1.0, 5.0, 1.0]), 2.0)) == [(0, 2)]
    assert not list(pairs_adding_up(np.array([1.0, 5.0]), 2.0))
