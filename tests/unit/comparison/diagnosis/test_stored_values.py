"""A parameter with the values of another one, or with one number in each element, is told so in any layout."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.api.reading import Dump
from gradscope.comparison import Comparison

pytestmark = pytest.mark.usefixtures("compiled_in_a_hurry")

DRAW = np.random.default_rng(3)
SHAPES = {"a/weight": (6, 4), "b/weight": (6, 4), "c/weight": (6, 4), "c/bias": (6,), "d/bias": (6,)}
VALUES = {name: DRAW.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}

#: What a port keeps in place of values by name.
KEPT: dict[str, Callable[[Mapping[str, Any]], Mapping[str, Any]]] = {
    "as it is": lambda values: values,
    "transposed": lambda values: {name: value.T for name, value in values.items()},
    "in bfloat16": lambda values: {name: jnp.asarray(value, jnp.bfloat16) for name, value in values.items()},
}


def _captured(values: Mapping[str, Any]) -> Dump:
    def loss(params: Any, x: Any) -> Any:
        return x * sum(jnp.square(each.astype(jnp.float32)).sum() for each in jax.tree.leaves(params))

    return gs.capture(loss, dict(values), np.float32(1), origins=False)


@pytest.fixture(scope="module")
def reference(compiled_in_a_hurry: None) -> Dump:
    return _captured(VALUES)


def _likely(found: Comparison) -> dict[str, str]:
    return {row.name: row.likely for row in found.rows if row.family == "param" and row.likely}


@pytest.mark.slow
@pytest.mark.parametrize("kept", KEPT)
def test_the_weight_of_another_layer_is_named_in_the_row_and_in_the_sentence(reference: Dump, kept: str) -> None:
    found = gs.compare(reference, _captured(KEPT[kept](VALUES | {"b/weight": VALUES["a/weight"]})))
    assert _likely(found) == {"b/weight": "has the values of `a/weight`"}
    assert "from different parameters (`b/weight`; it has the values of `a/weight`)." in found.sentence


@pytest.mark.slow
def test_what_is_left_at_one_number_is_said_to_be_that_and_not_another_tensor_of_that_number(reference: Dump) -> None:
    found = gs.compare(reference, _captured(VALUES | {"c/bias": np.zeros(6, np.float32)}))
    assert _likely(found) == {"c/bias": "is 0 in each element"}
    zeros = _captured(VALUES | {"d/bias": np.zeros(6, np.float32)})
    both = gs.compare(zeros, _captured(VALUES | {name: np.zeros(6, np.float32) for name in ("c/bias", "d/bias")}))
    assert _likely(both) == {"c/bias": "is 0 in each element"}


@pytest.mark.parametrize("other", [np.nan, np.inf, -np.inf])
def test_what_is_one_number_only_where_it_is_finite_is_not_said_to_be_that_in_each_element(
    reference: Dump, other: float
) -> None:
    bias = np.zeros(6, np.float32)
    bias[2] = other
    assert "in each element" not in gs.compare(reference, _captured(VALUES | {"c/bias": bias})).sentence


@pytest.mark.slow
def test_values_that_only_have_the_norm_of_another_tensor_are_none_of_it(reference: Dump) -> None:
    turned = np.float32(-1) ** np.arange(24, dtype=np.float32).reshape(6, 4) * VALUES["a/weight"]
    found = gs.compare(reference, _captured(VALUES | {"b/weight": turned}))
    assert not _likely(found)
    assert "from different parameters (`b/weight`)." in found.sentence


@pytest.mark.slow
def test_of_several_parameters_the_first_that_is_explained_is_named(reference: Dump) -> None:
    other = {"a/weight": VALUES["c/weight"] + VALUES["a/weight"], "b/weight": VALUES["c/weight"]}
    sentence = gs.compare(reference, _captured(VALUES | other)).sentence
    assert "(`a/weight`, `b/weight`; `b/weight` has the values of `c/weight`)." in sentence


@pytest.mark.slow
def test_a_part_of_a_packed_weight_with_the_values_of_another_layer_is_told() -> None:
    apart = {f"layer{n}/{part}": DRAW.normal(size=(6, 4)).astype(np.float32) for n in range(3) for part in ("q", "k")}
    wrong = apart | {"layer1/q": apart["layer0/q"]}
    packed = {f"h{n}/qk": np.concatenate([wrong[f"layer{n}/q"].T, wrong[f"layer{n}/k"].T]) for n in range(3)}
    assert _likely(gs.compare(_captured(apart), _captured(packed))) == {"layer1/q": "has the values of `layer0/q`"}
