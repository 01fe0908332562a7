"""The layers of a dump state what they read, and not all of it where that grows with the square of the iterations."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.capturing.records import layer_tree


def with_history(variables: Any, batch: Any) -> Any:
    """A loop in which each iteration reads what all before it have computed."""

    def body(carry: Any, number: Any) -> Any:
        x, history = carry
        with jax.named_scope("cell"):
            x = jnp.sin((x + history.sum(0)) @ variables["w"])
        return (x, history.at[number].set(x)), None

    start = (batch["x"], jnp.zeros((8, 2)))
    with jax.named_scope("loop"):
        (x, _), _ = jax.lax.scan(body, start, jnp.arange(8))
    return x.sum()


@pytest.mark.slow
def test_the_sources_of_all_layers_are_bounded_and_the_last_ones_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def stated() -> dict[str, tuple[str, ...]]:
        dump = gs.capture(with_history, {"w": 0.3 * np.eye(2, dtype=np.float32)}, {"x": np.ones(2, np.float32)})
        return {layer.path: layer.sources for layer in dump.manifest.layers if layer.path.endswith("cell")}

    everything = stated()
    assert len(everything["loop[7]/cell"]) == 3
    monkeypatch.setattr(layer_tree, "_MOST_SOURCES", 6)
    monkeypatch.setattr(layer_tree, "_NEAREST_SOURCES", 1)
    few = stated()
    assert sum(map(len, few.values())) <= 6 + len(few)
    assert few["loop[7]/cell"] == everything["loop[7]/cell"][-1:]


def reconstructing(variables: Any, batch: Any) -> Any:
    with jax.named_scope("first"):
        x = batch["x"] @ variables["w"]
    with jax.named_scope("last"):
        x = jnp.sin(x)
    return jnp.square(x - batch["x"]).mean()


@pytest.mark.parametrize(
    ("options", "sources"),
    [
        ({}, ("activation/last", "input/x")),
        ({"stats_only": True}, ("activation/last", "input/x")),
        ({"select": "first"}, ()),
    ],
)
def test_a_dump_of_all_layers_states_what_the_loss_is_next_computed_from(
    options: dict[str, Any], sources: tuple[str, ...]
) -> None:
    arguments = {"w": np.eye(2, dtype=np.float32)}, {"x": np.ones((3, 2), np.float32)}
    assert gs.capture(reconstructing, *arguments, **options).manifest.loss_sources == sources
