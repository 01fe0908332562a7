"""Of one layer of many that computes in fewer digits inside, the sentence says so, and of no other fault."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.api.reading import Dump


@cache
def _network(narrow: int | None = None, *, dtype: str = "bfloat16", scale: float = 1.0, returned: bool = False) -> Dump:
    """Five layers, one of which multiplies in a narrow type, and multiplies by a factor; it may return that type."""

    def loss(kernels: Any, read: Any) -> Any:
        for number, kernel in enumerate(kernels):
            with jax.named_scope(f"dense{number}"):
                if number == narrow:
                    read = scale * (read.astype(dtype) @ kernel.astype(dtype)).astype(
                        dtype if returned else jnp.float32
                    )
                else:
                    read = read @ kernel
            read = jnp.tanh(read.astype(jnp.float32))
        return jnp.square(read).mean()

    rng = np.random.default_rng(0)
    kernels = [rng.normal(size=(32, 32)).astype(np.float32) / 6 for _ in range(5)]
    return gs.capture(loss, kernels, rng.normal(size=(16, 32)).astype(np.float32))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_layer_that_computes_in_fewer_digits_is_told(dtype: str) -> None:
    found = gs.compare(_network(), _network(2, dtype=dtype))
    assert "Forward first differs at `dense2`" in found.sentence
    assert f"it is computed in {dtype} inside its layer, and the reference's in float32" in found.sentence
    assert [row.name for row in found.rows if "computed in" in row.likely] == ["dense2"]


@pytest.mark.slow
def test_rounding_is_not_told_for_what_it_does_not_explain_or_what_both_do() -> None:
    assert "computed in" not in gs.compare(_network(), _network(2, scale=1.05)).sentence
    assert "computed in" not in gs.compare(_network(2), _network(2, scale=1.002)).sentence


def test_the_first_layer_that_returns_another_type_is_told_where_nothing_differs() -> None:
    wide, narrow = _network(), _network(2, returned=True)
    told = "; `dense2` has the digits of {}, as has what is computed from it, and the reference's those of {}"
    for one, other, types in ((wide, narrow, ("bfloat16", "float32")), (narrow, wide, ("float32", "bfloat16"))):
        found = gs.compare(one, other)
        assert found.verdict == "same"
        assert told.format(*types) in found.sentence, found.sentence
    assert "digits" not in gs.compare(narrow, narrow).sentence


@cache
def _mixed(dtype: str | None = None) -> Dump:
    """Layers that all multiply in a narrow type, and return float32 all the same."""

    def loss(kernels: Any, read: Any) -> Any:
        for number, kernel in enumerate(kernels):
            with jax.named_scope(f"dense{number}"):
                factors = (read, kernel) if dtype is None else (read.astype(dtype), kernel.astype(dtype))
                read = jnp.tanh(jnp.matmul(*factors).astype(jnp.float32))
        return jnp.square(read).mean()

    rng = np.random.default_rng(0)
    kernels = [rng.normal(size=(32, 32)).astype(np.float32) / 6 for _ in range(3)]
    return gs.capture(loss, kernels, rng.normal(size=(16, 32)).astype(np.float32))


@pytest.mark.slow
def test_the_first_layer_that_computes_in_another_type_inside_is_told_where_most_do_and_nothing_differs() -> None:
    found = gs.compare(_mixed(), _mixed("bfloat16"))
    assert found.verdict == "same"
    assert "; `dense0` is computed in bfloat16 inside its layer, and the reference's in float32" in found.sentence
    other = gs.compare(_mixed("bfloat16"), _mixed())
    assert other.verdict == "same"
    assert "; `dense0` is computed in float32, and the reference's in bfloat16 inside its layer" in other.sentence
    assert "computed in" not in gs.compare(_mixed("bfloat16"), _mixed("bfloat16")).sentence


@cache
def _attention(dtype: str | None = None, scale: float = 1.0) -> Dump:
    """An attention of which the scores may be computed in a narrow type, between layers that are not."""

    def loss(kernels: Any, read: Any) -> Any:
        with jax.named_scope("attention"):
            parts = []
            for name in ("query", "key", "value"):
                with jax.named_scope(name):
                    parts.append(read @ kernels[name])
            query, key, value = parts
            factors = (query, key.T) if dtype is None else (query.astype(dtype), key.T.astype(dtype))
            weights = jax.nn.softmax(jnp.matmul(*factors).astype(jnp.float32) * scale, axis=-1)
            made = weights @ value
            with jax.named_scope("output"):
                made = made @ kernels["output"]
        return jnp.square(jnp.tanh(made)).mean()

    rng = np.random.default_rng(0)
    kernels = {name: rng.normal(size=(16, 16)).astype(np.float32) / 4 for name in ("query", "key", "value", "output")}
    return gs.capture(loss, kernels, rng.normal(size=(12, 16)).astype(np.float32))


def test_a_step_between_layers_that_is_computed_in_fewer_digits_is_told_of_the_program_that_does_so() -> None:
    told = "a step of `attention` that neither program has an entry for, which is computed in bfloat16 in the {}"
    wide, narrow = _attention(), _attention("bfloat16")
    for one, other, whose in ((wide, narrow, "candidate"), (narrow, wide, "reference")):
        found = gs.compare(one, other)
        assert "Forward first differs at `attention/output`" in found.sentence
        assert told.format(whose) in found.sentence, found.sentence


def test_such_a_step_is_not_told_where_both_compute_so_or_it_explains_too_little() -> None:
    for one in (_attention("bfloat16"), _attention()):
        found = gs.compare(one, _attention("bfloat16", 1.5))
        assert found.verdict == "different"
        assert "computed in" not in found.sentence
