"""Names within collections are found as by comparing each with each, in time that grows with their number."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from gradscope.comparison.pairing.normal_forms import NamesWithin
from tests.support.work import steps

NAMES = st.lists(st.sampled_from(["a", "b", "ab", ""]), min_size=1, max_size=4).map("/".join)


def is_within(name: str, other: str) -> bool:
    return f"/{name}".endswith(f"/{other}") or f"/{other}".endswith(f"/{name}")


@given(names=st.lists(NAMES, unique=True, max_size=8), other=NAMES)
def test_names_are_those_of_which_one_ends_with_the_other(names: Sequence[str], other: str) -> None:
    assert NamesWithin(names).of(other) == [name for name in names if is_within(name, other)]


def test_the_work_for_names_of_one_last_word_grows_with_their_number() -> None:
    def found(count: int) -> None:
        names = NamesWithin(f"norm{number:06}/mean" for number in range(count))
        for number in range(count):
            assert names.of(f"batch_stats/norm{number:06}/mean") == [f"norm{number:06}/mean"]

    assert steps(lambda: found(1600)) < 4.5 * steps(lambda: found(400))
