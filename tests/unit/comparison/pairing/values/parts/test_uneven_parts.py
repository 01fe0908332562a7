"""Parts of several sizes are tried in an order only where the elements of the whole are among theirs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gradscope.comparison.pairing.matching import Dumps
from gradscope.comparison.pairing.values.parts.joined import uneven_parts as searched
from tests.support.dumps import of_params

_draw = np.random.default_rng(4).normal
PARTS = {name: _draw(size=(6, width)).astype(np.float32) for name, width in (("q", 8), ("k", 4), ("v", 5))}
SHAPES = ((4, 8), (8, 8), (8, 16), (2, 8))


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ways to join parts that are tried."""
    found: list[str] = []

    def counting(way: Any) -> Any:
        def counted(*arguments: Any) -> Any:
            found.append(way.__name__)
            return way(*arguments)

        return counted

    monkeypatch.setattr(searched, "WAYS", tuple(map(counting, searched.WAYS)))
    return found


def test_of_tensors_that_have_nothing_in_common_no_order_is_tried(tried: list[str]) -> None:
    one, other = (
        of_params({f"{name}{at}": _draw(size=SHAPES[at % 4]).astype(np.float32) for at in range(24)}) for name in "ab"
    )
    assert not list(searched.uneven_parts(Dumps(ref=one, cand=other), one.keys(), other.keys()))
    assert len(tried) <= 20, "almost all of the 2,000 orders are ruled out"


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("order", ["qkv", "vqk"])
def test_parts_are_found_that_are_rounded(tried: list[str], dtype: Any, order: str) -> None:
    whole = np.concatenate([PARTS[name] for name in order], 1).astype(dtype)
    apart, packed = of_params(PARTS), of_params({"packed": whole})
    found = list(searched.uneven_parts(Dumps(ref=apart, cand=packed), apart.keys(), packed.keys()))
    assert {each.ref for each in found} == {f"param/{name}" for name in PARTS}
    assert tried
