"""A layer that computes in fewer digits than float32 is known as such, whatever it reads and returns."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import gradscope as gs

WEIGHTS = jax.random.normal(jax.random.key(0), (4, 4))
X = jax.random.normal(jax.random.key(1), (3, 4))


def loss(weights: dict[str, Any], batch: Any) -> Any:
    def narrow(x: Any, dtype: Any) -> Any:
        return (x.astype(dtype) @ weights["w"].astype(dtype)).astype(jnp.float32)

    with jax.named_scope("plain"):
        x = batch @ weights["w"]
    with jax.named_scope("block"):
        with jax.named_scope("first"):
            x = narrow(x, jnp.bfloat16)
        with jax.named_scope("second"):
            x = jnp.tanh(x)
    with jax.named_scope("loop"):
        x, _ = jax.lax.scan(lambda carry, _: (jax.jit(narrow, static_argnums=1)(carry, "float16"), None), x, length=2)
    with jax.named_scope("fine"):
        return jnp.square(x * weights["b"]).mean()


@pytest.mark.slow
def test_the_narrowest_dtype_inside_of_a_layer_is_known() -> None:
    dump = gs.capture(loss, {"w": WEIGHTS, "b": jnp.ones(())}, X, origins=False)
    found = {layer.path: layer.narrowest for layer in dump.layers if "[" not in layer.path}
    narrow = {"block": "bfloat16", "block/first": "bfloat16", "loop": "float16"}
    assert found == {"plain": None, "block/second": None, "fine": None} | narrow


def test_what_a_layer_rounds_inside_is_judged_as_that() -> None:
    def program(dtype: Any) -> Any:
        def own(weights: dict[str, Any], batch: Any) -> Any:
            with jax.named_scope("dense"):
                x = (batch.astype(dtype) @ weights["w"].astype(dtype)).astype(jnp.float32)
            with jax.named_scope("act"):
                x = jnp.tanh(x)
            return jnp.square(x).mean()

        return gs.capture(own, {"w": WEIGHTS}, X, origins=False)

    exact, narrow = program(jnp.float32), program(jnp.bfloat16)
    for found in (gs.compare(exact, narrow), gs.compare(narrow, exact)):
        assert found.verdict == "same", found.sentence
        rows = {row.name: row for row in found.rows if row.family == "activation"}
        assert rows["dense"].metrics["rel_l2"] > 1e-3
        assert {row.tolerance for row in rows.values()} == {2e-2}
    assert gs.compare(exact, program(jnp.float32)).verdict == "same"
