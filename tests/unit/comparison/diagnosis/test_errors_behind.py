"""The largest error next behind a value is that of a search from each value, in time linear in their number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import pytest

from gradscope.comparison.diagnosis.refuting.behind.errors_behind import ErrorsBehind


def searched(sources: Mapping[str, Sequence[str]], errors: Mapping[str, float], unread: float, key: str) -> float:
    """The definition: a search from one value, which stops at what is compared."""
    waiting, seen, found = [key], {key}, 0.0
    while waiting:
        here = waiting.pop()
        readers = [each for each, made_of in sources.items() if here in made_of]
        found = max(found, 0.0 if readers else unread)
        for each in readers:
            found = max(found, errors.get(each, 0.0))
            if each not in seen and each not in errors:
                seen.add(each)
                waiting.append(each)
    return found


@pytest.mark.parametrize("seed", range(20))
def test_results_are_those_of_a_search_also_with_cycles_and_values_that_are_added(seed: int) -> None:
    draw = np.random.default_rng(seed)
    keys = [f"activation/{n}" for n in range(14)]
    sources = {key: [str(each) for each in draw.choice(keys, draw.integers(0, 3))] for key in keys}
    errors = {str(key): float(draw.random()) for key in draw.choice(keys, 3, replace=False)}
    behind = ErrorsBehind(sources, errors, 0.5)
    for number in range(40):
        key = str(draw.choice(keys))
        assert behind.largest(key) == searched(sources, errors, 0.5, key)
        if number % 7 == 0:
            errors[key] = float(draw.random())
            behind.add(key, errors[key])


class Key(str):
    """A key that counts how often one is looked up."""

    looks = 0

    def __hash__(self) -> int:
        Key.looks += 1
        return super().__hash__()


@pytest.mark.parametrize("borne_out", [True, False])
def test_a_chain_is_visited_once_however_many_values_are_requested(borne_out: bool) -> None:
    looks: dict[int, int] = {}
    for count in (100, 400):
        keys = [Key(f"activation/{n}") for n in range(count + 1)]
        sources: dict[str, list[str]] = {after: [before] for before, after in pairwise(keys)}
        behind = ErrorsBehind(sources, {keys[-1]: 0.25}, 0.5)
        Key.looks = 0
        for key in reversed(keys[:-1]):
            assert behind.largest(key) == 0.25
            if borne_out:
                behind.add(key, 0.25)
        assert behind.largest(keys[0]) == 0.25
        looks[count] = Key.looks
    assert looks[400] <= 4.5 * looks[100]


@pytest.mark.parametrize("first", [True, False])
def test_a_chain_is_visited_once_from_either_end(first: bool) -> None:
    looks: dict[int, int] = {}
    for count in (100, 400):
        keys = [Key(f"activation/{n}") for n in range(count)]
        sources: dict[str, list[str]] = {after: [before] for before, after in pairwise(keys)}
        behind = ErrorsBehind(sources, {}, 0.5)
        Key.looks = 0
        for key in keys if first else reversed(keys):
            assert behind.largest(key) == 0.5
        looks[count] = Key.looks
    assert looks[400] <= 4.5 * looks[100]
