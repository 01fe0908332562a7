"""A tensor that is made of others has their elements, also where nearly any number is near one of so many."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gradscope.comparison.pairing.values.parts.joined.shared_elements import SharedElements
from tests.support.dumps import of_params

Joining = Callable[..., np.ndarray]

WIDTH = 192


def _halves_in_turn(*parts: np.ndarray) -> np.ndarray:
    return np.stack(parts, 1).reshape(-1, WIDTH)


def _heads_side_by_side(*parts: np.ndarray) -> np.ndarray:
    return np.concatenate([each.reshape(-1, 8, WIDTH) for each in parts], 1).reshape(-1, WIDTH)


WAYS: dict[str, Joining] = {
    "rows": lambda *parts: np.concatenate(parts, 0),
    "columns": lambda *parts: np.concatenate(parts, 1),
    "turned": lambda *parts: np.concatenate([each.T for each in parts], 0),
    "rows in turn": _halves_in_turn,
    "heads in turn": _heads_side_by_side,
    "convolution": lambda *parts: np.concatenate([each.reshape(3, 8, 8, WIDTH) for each in parts], -1),
}


@pytest.mark.parametrize("rounded", [0.0, 1e-6])
@pytest.mark.parametrize("way", WAYS)
def test_the_elements_of_parts_are_found_in_whatever_order(way: str, rounded: float) -> None:
    random = np.random.default_rng(0)
    parts = {name: random.normal(size=(WIDTH, WIDTH)).astype("f") for name in "qkv"}
    whole = WAYS[way](*parts.values())
    whole = whole + rounded * random.normal(size=whole.shape).astype("f")
    assert _are_of(whole, parts)


@pytest.mark.parametrize("shape", [(3 * WIDTH, WIDTH), (WIDTH, 3 * WIDTH), (3, 8, 8, 3 * WIDTH)])
def test_other_elements_are_not_even_among_very_many(shape: tuple[int, ...]) -> None:
    random = np.random.default_rng(0)
    parts = {name: random.normal(size=(WIDTH, WIDTH)).astype("f") for name in "qkv"}
    assert not _are_of(random.normal(size=shape).astype("f"), parts)


def _are_of(whole: np.ndarray, parts: dict[str, np.ndarray]) -> bool:
    shared = SharedElements(of_params(parts))
    return shared.are_of(of_params({"qkv": whole}), "param/qkv", [f"param/{name}" for name in parts])
