"""Matrices are matched with one that they are joined in along both axes, whichever program has that."""

from __future__ import annotations

import numpy as np
import pytest

from gradscope.comparison.pairing.matching import Dumps, Match, Pairing
from gradscope.comparison.pairing.values.parts.by_parts import by_parts
from gradscope.dump.sources.memory_dump import MemoryDump
from tests.support.dumps import of_params

Arrays = dict[str, np.ndarray]


def kernels(heights: tuple[int, ...], widths: tuple[int, ...]) -> Arrays:
    random = np.random.default_rng(0)
    return {
        f"cell/{row}{column}": random.normal(size=(height, width)).astype(np.float32)
        for row, height in zip("ih", heights, strict=True)
        for column, width in zip("abcd", widths, strict=False)
    }


def joined(parts: Arrays, *, rows: str = "ih", columns: str = "abcd") -> np.ndarray:
    own = [column for column in columns if f"cell/i{column}" in parts]
    return np.block([[parts[f"cell/{row}{column}"] for column in own] for row in rows])


def matches(ref: MemoryDump, cand: MemoryDump) -> tuple[Match, ...]:
    dumps, pairing = Dumps(ref=ref, cand=cand), Pairing(only_ref=ref.keys(), only_cand=cand.keys())
    return pairing.with_matches(by_parts(dumps, pairing)).matched


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("heights", "widths"), [((3, 5), (4, 4, 4, 4)), ((4, 4), (3, 5)), ((2, 3), (4, 5, 6))])
def test_parts_in_whatever_order_are_found(heights: tuple[int, ...], widths: tuple[int, ...], *, turned: bool) -> None:
    parts = kernels(heights, widths)
    whole = joined(parts, rows="hi", columns="acbd")
    own = {name: each.T.copy() for name, each in parts.items()} if turned else parts
    found = matches(of_params(own), of_params({"linear/w": whole}))
    assert {each.ref for each in found} == {f"param/{name}" for name in parts}
    for match in found:
        assert np.array_equal(match.recipe.array(of_params({"linear/w": whole})), own[match.ref.removeprefix("param/")])
        assert match.matched_by == "fingerprint"
    even = len(set(heights)) == 1 or len(set(widths)) == 1
    (*joining,) = matches(of_params({"linear/w": whole}), of_params(own))
    assert len(joining) == even
    for match in joining:
        assert np.array_equal(match.recipe.array(of_params(own)), whole)


def test_one_part_of_other_values_is_the_one_whose_name_completes_the_others() -> None:
    parts = kernels((3, 5), (4, 4, 4, 4))
    whole = joined(parts)
    parts["cell/hb"] = parts["cell/hb"] + 1
    found = {each.ref: each for each in matches(of_params(parts), of_params({"linear/w": whole}))}
    assert found["param/cell/hb"].matched_by == "order"
    assert np.array_equal(found["param/cell/hb"].recipe.array(of_params({"linear/w": whole})), whole[3:, 4:8])
    parts["cell/ha"] = parts["cell/ha"] + 1
    assert not matches(of_params(parts), of_params({"linear/w": whole}))
