"""Names that repeat have one in common where their numbers make up complete ranges, and none else."""

from __future__ import annotations

import random

import pytest

from gradscope.presentation.tables.over_time.repeated_names import ITERATIONS, NUMBERS, repeated


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["a[0]/w", "a[1]/w", "a[2]/w"], ["a[0..2]/w"]),
        (["block1/w", "block2/w"], ["block[1..2]/w"]),
        (["conv1/w2", "conv1/w3", "conv2/w2"], ["conv1/w[2..3]", "conv2/w2"]),
        (["a[0]", "a[2]"], ["a[0]", "a[2]"]),
        (["s1[0]", "s1[1]", "s2[0]", "s2[1]"], ["s[1..2][0..1]"]),
        (["a1", "a01"], ["a1", "a01"]),
        (["b", "a"], ["b", "a"]),
    ],
)
def test_complete_ranges_share_a_name(names: list[str], found: list[str]) -> None:
    assert [name for name, _ in repeated(names, NUMBERS)] == found


def test_only_iterations_where_these_are_requested() -> None:
    names = ["a1[0]", "a1[1]", "a2[0]", "a2[1]"]
    assert list(repeated(names, ITERATIONS)) == [("a1[0..1]", [0, 1]), ("a2[0..1]", [2, 3])]


@pytest.mark.parametrize("seed", range(20))
def test_every_name_is_in_one_group(seed: int) -> None:
    random.seed(seed)
    names = list({f"l{random.randrange(4)}[{random.randrange(3)}]/k{random.randrange(2)}" for _ in range(12)})
    groups = list(repeated(names, NUMBERS))
    assert sorted(at for _, group in groups for at in group) == list(range(len(names)))
    assert len({name for name, _ in groups}) == len(groups)
