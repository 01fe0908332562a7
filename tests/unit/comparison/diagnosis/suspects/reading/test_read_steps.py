"""Steps are told apart by what the layer behind them reads: beside a product, or recovered by its kernel's inverse."""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import gradscope as gs
from gradscope.api.reading import Dump
from gradscope.comparison.diagnosis.suspects.reading.recovered_values import Recovered
from tests.support.sampled import sampled

_draw = np.random.default_rng(23).normal
WEIGHTS = {
    "in": (_draw(size=(6, 6)) / 2).astype(np.float32),
    "side": (_draw(size=(6, 6)) / 2).astype(np.float32),
    "head": (_draw(size=(12, 14)) / 12).astype(np.float32),
}
KEPT = (np.arange(60).reshape(5, 12) % 3 > 0).astype(np.float32)
BATCH = {"x": _draw(size=(5, 6)).astype(np.float32)}


@cache
def _residual(*, port: bool, fault: str = "") -> Dump:
    """A layer that adds its product to what two steps make, and one that reads two values side by side."""

    def scope(name: str) -> Any:
        return nullcontext() if port else jax.named_scope(name)

    def loss(weights: Any, batch: Any) -> Any:
        with jax.named_scope("Dense_0" if port else "in"):
            x = batch["x"] @ weights["in"]
        with scope("act"):
            y = jax.nn.relu(x) if fault == "act" else jax.nn.elu(x)
        with scope("mix"):
            z = jnp.cos(3 * y) + y[:, ::-1] * (1.5 if fault == "mix" else 1.0)
        with jax.named_scope("Dense_1" if port else "side"):
            x = z + (z if fault == "input" else y) @ weights["side"]
        with scope("one"):
            one = jnp.sin(2 * x) - x[:, ::-1] * (0.5 if fault == "one" else 1.0)
        with scope("other"):
            other = jnp.sin(one * one) + jnp.cos(x) * (0.5 if fault == "other" else 1.0)
        joined = [other, one] if fault == "order" else [one, other]
        x = jnp.concatenate(joined, -1) * (KEPT if fault == "dropout" else 1.0)
        with jax.named_scope("Dense_2" if port else "head"):
            x = jnp.tanh(x @ weights["head"])
        return jnp.square(x).sum(-1).mean()

    return gs.capture(loss, WEIGHTS, BATCH, origins=False)


@sampled(
    ("fault", "first"),
    [
        *(("act", "act"), ("mix", "mix"), ("input", "side")),
        *(("one", "one"), ("other", "other"), ("order", "head"), ("dropout", "head")),
    ],
)
def test_the_first_step_is_named_that_what_a_layer_reads_shows_to_be_wrong(fault: str, first: str) -> None:
    reference = _residual(port=False)
    assert gs.compare(reference, _residual(port=True)).verdict == "same"
    found = gs.compare(reference, _residual(port=True, fault=fault))
    forward = found.first_divergence.forward
    assert forward is not None
    assert [row.name for row in found.blame.suspects] in ([first], [] if first == forward.name else [first])
    assert found.sentence.startswith(f"Forward first differs at `{first}`"), found.sentence
    back = gs.compare(_residual(port=True, fault=fault), reference)
    named = {"side": "Dense_1", "head": "Dense_2"}.get(first, first)
    assert back.sentence.startswith(f"Forward first differs at `{named}`"), back.sentence


def test_a_part_is_found_by_its_elements_and_none_in_values_that_lack_or_repeat_them() -> None:
    whole = np.random.default_rng(1).normal(size=(4, 6))
    changed = whole + np.eye(4, 6)
    read = Recovered(whole, changed)
    assert read.part(whole[:, 4:].T) is True
    assert read.part(whole[:, :3]) is False
    assert read.part(whole[:, :3] + 0.5) is None
    assert Recovered(np.zeros((4, 6)), changed).part(np.zeros((4, 2))) is None
    assert not read.is_rearranged()
    assert Recovered(whole, whole[:, ::-1]).is_rearranged()
    assert Recovered(whole, whole * (np.arange(24).reshape(4, 6) % 4 > 0) / 0.75).is_rearranged()
