"""Work in a thread runs ahead of what is consumed, by so much and no more."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator

import pytest

from gradscope.capturing.records.prefetch import Ahead, in_order, one_ahead

AHEAD = Ahead(batches=3, batch_items=4, batch_bytes=100)


def most_under_way(sizes: list[int], ahead: Ahead) -> int:
    """How many items had been drawn and not been handed out, at most."""
    under_way = most = 0

    def drawing() -> Iterator[int]:
        nonlocal under_way, most
        for size in sizes:
            under_way += 1
            most = max(most, under_way)
            yield size

    for _ in in_order(lambda size: size, drawing(), ahead=ahead, size_of=lambda size: size):
        under_way -= 1
    return most


@pytest.mark.parametrize("count", [0, 1, 4, 50])
def test_results_come_in_order(count: int) -> None:
    found = in_order(lambda each: each * each, range(count), ahead=AHEAD, size_of=lambda _: 1)
    assert list(found) == [each * each for each in range(count)]


def test_it_works_in_one_other_thread() -> None:
    threads = set(in_order(lambda _: threading.get_ident(), range(50), ahead=AHEAD, size_of=lambda _: 1))
    assert len(threads) == 1
    assert threading.get_ident() not in threads


@pytest.mark.parametrize(("size", "most"), [(0, 12), (25, 12), (34, 9), (50, 6), (100, 3), (1000, 3)])
def test_more_small_items_than_large_ones_are_in_memory(size: int, most: int) -> None:
    assert most_under_way([size] * 30, AHEAD) == most


def test_a_large_item_does_not_wait_for_others() -> None:
    assert most_under_way([1, 1000, 1000, 1000, 1000], AHEAD) == 4


@pytest.mark.parametrize("fails_at", [0, 2, 3, 4, 9])
def test_results_before_a_failure_come_first(fails_at: int) -> None:
    def reciprocal(each: int) -> float:
        return 1 / (fails_at - each)

    found = in_order(reciprocal, range(10), ahead=AHEAD, size_of=lambda _: 1)
    assert [next(found) for _ in range(fails_at)] == [1 / (fails_at - each) for each in range(fails_at)]
    with pytest.raises(ZeroDivisionError):
        next(found)


@pytest.mark.parametrize("fails_at", [0, 2, 3, 4, 9, 30])
def test_results_before_a_failure_of_the_items_come_first(fails_at: int) -> None:
    """What is drawn may be what another thread makes."""

    def reciprocal(each: int) -> float:
        return 1 / (fails_at - each)

    made = in_order(reciprocal, range(40), ahead=AHEAD, size_of=lambda _: 1)
    found = in_order(lambda each: -each, made, ahead=AHEAD, size_of=lambda _: 1)
    assert [next(found) for _ in range(fails_at)] == [-1 / (fails_at - each) for each in range(fails_at)]
    with pytest.raises(ZeroDivisionError):
        next(found)


def test_a_consumer_that_stops_ends_the_drawing() -> None:
    ended: list[bool] = []

    def drawing() -> Iterator[int]:
        try:
            yield from range(100)
        finally:
            ended.append(True)

    found = in_order(lambda each: each, drawing(), ahead=AHEAD, size_of=lambda _: 1)
    assert next(found) == 0
    found.close()
    del found
    assert ended == [True]


class Item:
    """Something that may be in memory."""


def test_an_item_is_drawn_while_the_one_before_is_consumed() -> None:
    begun = [threading.Event() for _ in range(4)]

    def drawing() -> Iterator[int]:
        for number, event in enumerate(begun):
            event.set()
            yield number

    for number in one_ahead(drawing()):
        assert all(event.wait(timeout=20) for event in begun[: number + 2])
        assert not any(event.is_set() for event in begun[number + 2 :])


def test_two_items_are_in_memory_at_a_time() -> None:
    begun = [threading.Event() for _ in range(6)]
    known: list[weakref.ref[Item]] = []
    there: list[int] = []

    def drawing() -> Iterator[Item]:
        for event in begun:
            there.append(sum(each() is not None for each in known))
            event.set()
            item = Item()
            known.append(weakref.ref(item))
            yield item
            del item

    for number, item in enumerate(one_ahead(drawing())):
        assert all(event.wait(timeout=20) for event in begun[: number + 2])
        del item
    assert there == [0, 1, 1, 1, 1, 1]


@pytest.mark.parametrize("fails_at", [0, 1, 3])
def test_items_before_one_that_fails_come_first(fails_at: int) -> None:
    found = one_ahead(1 / (fails_at - each) for each in range(10))
    assert [next(found) for _ in range(fails_at)] == [1 / (fails_at - each) for each in range(fails_at)]
    with pytest.raises(ZeroDivisionError):
        next(found)


def test_no_items_are_none() -> None:
    assert list(one_ahead(())) == []


@pytest.mark.slow
def test_a_consumer_that_stops_waits_for_what_is_drawn() -> None:
    drawn: list[int] = []
    found = one_ahead(drawn.append(each) or each for each in range(100))
    assert next(found) == 0
    found.close()
    assert drawn == [0, 1]
