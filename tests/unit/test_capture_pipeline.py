"""Work in threads runs ahead of what is consumed, by so much and no more."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gradscope.capture.pipeline import Ahead, in_order

AHEAD = Ahead(items=3, small_items=6, size_bytes=100)


def most_under_way(sizes: list[int], ahead: Ahead) -> int:
    """How many items had been drawn and not been handed out, at most."""
    under_way = most = 0

    def drawing() -> Iterator[int]:
        nonlocal under_way, most
        for size in sizes:
            under_way += 1
            most = max(most, under_way)
            yield size

    for _ in in_order(lambda size: size, drawing(), workers=2, ahead=ahead, size_of=lambda size: size):
        under_way -= 1
    return most


def test_results_come_in_order() -> None:
    found = in_order(lambda each: each * each, range(50), workers=2, ahead=AHEAD, size_of=lambda _: 1)
    assert list(found) == [each * each for each in range(50)]


@pytest.mark.parametrize(("size", "most"), [(1, 6), (16, 6), (34, 3), (1000, 3)])
def test_more_small_items_than_large_ones_are_held(size: int, most: int) -> None:
    assert most_under_way([size] * 20, AHEAD) == most


def test_a_large_item_among_small_ones_holds_the_others_back_until_it_is_consumed() -> None:
    assert most_under_way([1000] + [1] * 20, AHEAD) == 6
    assert most_under_way([1, 1000, 1, 1], AHEAD) == 3
