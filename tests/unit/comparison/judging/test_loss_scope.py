"""A loss that one program has in a scope is compared with the other's, and is at fault where it alone differs."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.api.reading import Dump
from gradscope.comparison.judging import loss_comparison
from gradscope.comparison.judging.loss_comparison import is_loss, losses_agree
from gradscope.dump.manifest.manifest import Entry, Manifest
from gradscope.dump.sources.memory_dump import MemoryDump
from tests.support.dumps import record

_draw = np.random.default_rng(13).normal
MEAN, DEVIATION = (_draw(size=(4, 3)).astype(np.float32) for _ in range(2))
BATCH = {"x": _draw(size=(5, 4)).astype(np.float32), "y": _draw(size=(5, 3)).astype(np.float32)}


@cache
def _reference() -> Dump:
    def loss(weights: Any, batch: Any) -> Any:
        with jax.named_scope("mean"):
            mean = batch["x"] @ weights["mean"]
        with jax.named_scope("deviation"):
            deviation = jax.nn.softplus(batch["x"] @ weights["deviation"]) + 0.05
        with jax.named_scope("likelihood"):
            z = (batch["y"] - mean) / deviation
            return (0.5 * jnp.square(z) + jnp.log(deviation)).mean()

    return gs.capture(loss, {"mean": MEAN, "deviation": DEVIATION}, BATCH, origins=False)


@cache
def _candidate(factor: float = 0.5) -> Dump:
    def loss(weights: Any, batch: Any) -> Any:
        with jax.named_scope("head"):
            both = batch["x"] @ weights["head"].T
        mean, deviation = both[:, :3], jax.nn.softplus(both[:, 3:]) + 0.05
        z = (batch["y"] - mean) / deviation
        return (factor * jnp.square(z) + jnp.log(deviation)).mean()

    return gs.capture(loss, {"head": np.concatenate([MEAN.T, DEVIATION.T])}, BATCH, origins=False)


def test_a_wrong_loss_is_blamed_and_not_what_it_reads() -> None:
    reference = _reference()
    assert gs.compare(reference, _candidate()).verdict == "same"
    found = gs.compare(reference, _candidate(factor=1.0))
    assert found.first_divergence.forward is not None
    assert found.first_divergence.forward.name == "likelihood", found.sentence
    one, other = (each.manifest.loss for each in (reference, _candidate(factor=1.0)))
    assert found.first_divergence.forward.why == f"the losses are {one:.6g} and {other:.6g}"
    assert "where `deviation` is the softplus plus 5.0e-2 of `head`" in found.sentence
    assert found.first_divergence.backward is not None
    assert found.first_divergence.backward.name == "mean"
    assert "before it `likelihood`" not in found.sentence


@pytest.mark.parametrize(
    ("one", "other", "agree"),
    [
        (1.0, 1.00005, True), (1.0, 1.0002, False), (-1.0, 1.0, False), (0.0, 0.0, True), (0.0, 1e-9, False),
        (math.inf, math.inf, True), (math.inf, 1.0, False), (math.inf, -math.inf, False), (1.0, math.inf, False),
        (math.nan, 1.0, False), (1.0, math.nan, False),
    ],
)  # fmt: skip
def test_losses_agree_within_a_relative_error_and_an_infinite_one_with_itself(
    one: float, other: float, agree: bool
) -> None:
    assert losses_agree(one, other, 1e-4) is agree


def test_no_key_and_no_other_number_is_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = [
        record("key", np.array([1, 2], np.uint32), dtype="key<fry>", shape=()),
        record("steps", np.array(2, np.int32)), record("complex", np.array(2 + 0j)), record("other", np.array(3.0)),
    ]  # fmt: skip
    loss = record("objective", np.array(2.0))
    dump = MemoryDump(
        Manifest(entries=tuple(map(Entry.of, [*numbers, loss])), loss=2.0),
        {f"activation/{each.name}": each.array for each in [*numbers, loss]},
    )
    assert is_loss(dump, "activation/objective")
    monkeypatch.setattr(loss_comparison, "sources_of", None)  # the graph of a program is not made for each number
    assert not any(is_loss(dump, f"activation/{each.name}") for each in numbers)


@pytest.mark.slow
def test_losses_of_other_values_that_are_equal_by_accident_make_no_step_agree() -> None:
    def captured(names: tuple[str, str], factor: float, *, step: bool) -> Dump:
        def loss(weights: Any, batch: Any) -> Any:
            with jax.named_scope(names[0]):
                x = jnp.tanh(batch["x"] @ weights[names[0]])
            with jax.named_scope(names[1]):
                x = factor * (x @ weights[names[1]])
            if step:
                with jax.named_scope("double"):
                    x = x + x
            value = jnp.square(x / 2 if step else x).mean()
            return 1 + value - jax.lax.stop_gradient(value)

        weights = {names[0]: MEAN, names[1]: DEVIATION[:3]}
        return gs.capture(loss, weights, {"x": BATCH["x"]}, origins=False)

    reference = captured(("first", "last"), 1.0, step=False)
    right, wrong = (captured(("Dense_0", "Dense_1"), factor, step=True) for factor in (1.0, 1.5))
    assert gs.compare(reference, right).verdict == "same"
    found = gs.compare(reference, wrong)
    assert found.verdict == "different"
    assert found.sentence.startswith("Forward first differs at `last` ("), found.sentence
    (step,) = (row for row in found.rows if (row.family, row.name) == ("activation", "double"))
    assert (step.counts, step.why) == (True, "")
