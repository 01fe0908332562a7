"""Names within collections are found as by comparing each with each, in time that grows with their number."""

from __future__ import annotations

import time
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from gradscope.comparison.pairing.normal_forms import NamesWithin

NAMES = st.lists(st.sampled_from(["a", "b", "ab", ""]), min_size=1, max_size=4).map("/".join)


def is_within(name: str, other: str) -> bool:
    return f"/{name}".endswith(f"/{other}") or f"/{other}".endswith(f"/{name}")


@given(names=st.lists(NAMES, unique=True, max_size=8), other=NAMES)
def test_names_are_those_of_which_one_ends_with_the_other(names: Sequence[str], other: str) -> None:
    assert NamesWithin(names).of(other) == [name for name in names if is_within(name, other)]


def test_names_of_one_last_word_are_found_in_little_time() -> None:
    count = 20_000
    begin = time.process_time()
    names = NamesWithin(f"norm{number}/mean" for number in range(count))
    for number in range(count):
        assert names.of(f"batch_stats/norm{number}/mean") == [f"norm{number}/mean"]
    assert time.process_time() - begin < 2
