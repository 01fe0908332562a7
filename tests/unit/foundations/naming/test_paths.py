"""Names of a tree's leaves: unique, and the plain path wherever that is."""

from __future__ import annotations

import pytest

from gradscope.naming.paths import plain_name, unique_names


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        ([("a", "b"), ("a/c",), ()], ["a/b", "a/c", "value"]),
        ([("a", "b"), ("a/b",)], ["a/b", "a%2Fb"]),
        ([("a/b",), ("a", "b"), ("c/d",)], ["a%2Fb", "a/b", "c/d"]),
        ([("a/b", "c"), ("a", "b/c"), ("a", "b", "c")], ["a%2Fb/c", "a/b%2Fc", "a/b/c"]),
        ([("x",), ("x",), ("x#2",)], ["x", "x#3", "x#2"]),
        ([("a/b",), ("a", "b"), ("a%2Fb",)], ["a%2Fb#2", "a/b", "a%2Fb"]),
    ],
)
def test_leaves_of_one_name_are_distinguished(paths: list[tuple[str, ...]], names: list[str]) -> None:
    assert sorted(unique_names(paths)) == sorted(names)
    assert len(set(unique_names(paths))) == len(paths)


def test_a_plain_name_is_the_one_in_the_program() -> None:
    assert {plain_name(name) for name in unique_names([("a", "b"), ("a/b",)])} == {"a/b"}
