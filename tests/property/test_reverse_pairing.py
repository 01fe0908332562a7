"""Reverse pairing: the parts that a recipe makes of a tensor return to their positions in it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gradscope.arrays.blocks import Array
from gradscope.comparison.layout.recipe_steps import Concatenate, RecipeStep, Reshape, Split, Stack, Transpose, Unstack
from gradscope.comparison.layout.recipes import Recipe
from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.comparison.pairing.reverse import ReversePairing
from tests.support.dumps import dump_of

SHAPE = (2, 4, 3)


def recipes() -> st.SearchStrategy[tuple[tuple[str, ...], tuple[RecipeStep, ...]]]:
    """Keys, and steps that can be done to as many tensors of SHAPE."""
    of_each: st.SearchStrategy[list[RecipeStep]] = st.lists(
        st.permutations(range(3)).map(lambda axes: Transpose(tuple(axes))), max_size=2
    )
    last: st.SearchStrategy[RecipeStep] = st.sampled_from(
        [Reshape((-1,)), Reshape((4, 6)), Unstack(0), Stack(1), Concatenate(2)]
    )
    steps = st.tuples(of_each, last).map(lambda pair: (*pair[0], pair[1]))
    return st.tuples(st.sampled_from([("a",), ("a", "b")]), steps)


def numbered(names: Sequence[str]) -> dict[str, Array]:
    return {
        f"param/{name}": np.arange(math.prod(SHAPE), dtype=np.float32).reshape(SHAPE) + 100 * at
        for at, name in enumerate(names)
    }


@given(recipes())
def test_a_reverse_pairing_undoes_every_recipe(recipe: tuple[tuple[str, ...], tuple[RecipeStep, ...]]) -> None:
    names, steps = recipe
    tensors = numbered(names)
    made: list[Array] = list(tensors.values())
    for step in steps:
        made = step.apply(made)
    ref = dump_of({f"param/{part}": array for part, array in enumerate(made)})
    cand = dump_of({key: np.zeros_like(array) for key, array in tensors.items()})
    matches = [
        Match(ref=f"param/{part}", recipe=Recipe(keys=tuple(tensors), steps=steps, part=part), matched_by="map")
        for part in range(len(made))
    ]
    reverse = ReversePairing(Dumps(ref=ref, cand=cand), matches)
    for key, tensor in tensors.items():
        returned = reverse.array(key)
        assert returned is not None
        np.testing.assert_array_equal(returned, tensor)
    if len(made) > 1:  # a part that is missing leaves a tensor unknown
        assert ReversePairing(Dumps(ref=ref, cand=cand), matches[1:]).array("param/a") is None


def test_a_reverse_pairing_converts_to_the_candidates_dtype() -> None:
    ref = dump_of({"param/w": np.array([1.0, 1.0 + 2.0**-20, 1e9], np.float32)})
    cand = dump_of({"param/w": np.zeros(3, np.float16)})
    returned = ReversePairing(Dumps(ref=ref, cand=cand), [Match.of("param/w", "param/w", "name")]).array("param/w")
    assert returned is not None
    assert returned.dtype == np.float16
    assert returned.tolist() == [1.0, 1.0, math.inf]


def test_a_reverse_pairing_has_no_array_where_shapes_or_kinds_do_not_fit() -> None:
    ref = dump_of({"param/w": np.zeros((2, 3)), "param/n": np.zeros(2, np.int32)})
    cand = dump_of({"param/w": np.zeros((3, 2)), "param/n": np.zeros(2, np.float32)})
    reverse = ReversePairing(Dumps(ref=ref, cand=cand), [Match.of(key, key, "name") for key in ref.keys()])  # noqa: SIM118
    assert reverse.array("param/w") is None
    assert reverse.array("param/n") is None


def test_parts_of_unequal_size_return_to_their_positions() -> None:
    full = np.arange(10.0).reshape(2, 5)
    q, kv = np.split(full, [2], axis=1)
    ref, cand = dump_of({"param/q": q, "param/kv": kv}), dump_of({"param/qkv": np.zeros_like(full)})
    split = (Split(1, (2, 3)),)
    matches = [
        Match(ref=key, recipe=Recipe(keys=("param/qkv",), steps=split, part=part), matched_by="map")
        for part, key in enumerate(("param/q", "param/kv"))
    ]
    returned = ReversePairing(Dumps(ref=ref, cand=cand), matches).array("param/qkv")
    np.testing.assert_array_equal(returned, full)
