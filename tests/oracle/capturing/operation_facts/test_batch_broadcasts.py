"""A loss that pairs every example with every other is told: it does not change when labels change places."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.tracing.lookup.batch_broadcasts import batch_broadcasts
from gradscope.tracing.tracer import trace_loss
from tests.support.data import drawn, evenly

N = 6
X, Y = drawn(0, N, 4), evenly(0.0, N - 1, N)
NUMBERS = jax.device_put(np.arange(N, dtype=np.int32))
COLUMN = evenly(0.0, N - 1, N, 1)
P = {"hidden": drawn(1, 4, 5), "head": drawn(2, 5, 1), "row": drawn(3, 5, N)}


@pytest.fixture(autouse=True)
def _as_users_run_it() -> Iterator[None]:
    with jax.numpy_rank_promotion("allow"):
        yield


def predicted(p: Any, x: Any) -> Any:
    """Returns a column [n, 1]."""
    with jax.named_scope("head"):
        return jnp.tanh(x @ p["hidden"]) @ p["head"]


def huber(error: Any) -> Any:
    return jnp.where(jnp.abs(error) < 1, error**2 / 2, jnp.abs(error) - 0.5)


def cross_entropy(logits: Any, labels: Any) -> Any:
    return -labels * jax.nn.log_sigmoid(logits) - (1 - labels) * jax.nn.log_sigmoid(-logits)


def scanned(p: Any, x: Any) -> Any:
    return jax.lax.scan(lambda carry, row: (carry, predicted(p, row)), 0.0, x)[1]


#: By name: a loss of parameters, of data, and of labels, and the labels.
PAIRED: Mapping[str, tuple[Callable[[Any, Any, Any], Any], Any]] = {
    "squares": (lambda p, x, y: jnp.mean((predicted(p, x) - y) ** 2), Y),
    "labels first": (lambda p, x, y: jnp.abs(y - predicted(p, x)).sum(), Y),
    "labels in a column": (lambda p, x, y: jnp.mean((predicted(p, x)[:, 0] - y) ** 2), COLUMN),
    "one axis after the other": (lambda p, x, y: jnp.square(predicted(p, x) - y).mean(-1).mean(), Y),
    "huber": (lambda p, x, y: huber(predicted(p, x) - y).mean(), Y),
    "cross-entropy": (lambda p, x, y: cross_entropy(predicted(p, x), y).mean(), evenly(0.0, 1.0 - 1 / N, N)),
    "scaled labels": (lambda p, x, y: jnp.mean((predicted(p, x) - (y - 2.5) / 1.7) ** 2), Y),
    "integer labels": (lambda p, x, y: jnp.mean((predicted(p, x) - y.astype(jnp.float32)) ** 2), NUMBERS),
    "in a jitted function": (lambda p, x, y: jax.jit(lambda a, b: ((a - b) ** 2).mean())(predicted(p, x), y), Y),
    "of a scan": (lambda p, x, y: jnp.mean((scanned(p, x) - y) ** 2), Y),
    "examples mapped": (lambda p, x, y: jnp.mean((jax.vmap(predicted, (None, 0))(p, x) - y) ** 2), Y),
}

#: Likewise: what is right, or a loss of pairs on purpose.
RIGHT: Mapping[str, tuple[Callable[[Any, Any, Any], Any], Any]] = {
    "a row and a row": (lambda p, x, y: jnp.mean((predicted(p, x)[:, 0] - y) ** 2), Y),
    "a column and a column": (lambda p, x, y: jnp.mean((predicted(p, x) - y) ** 2), COLUMN),
    "each example by itself": (
        lambda p, x, y: jax.vmap(lambda row, label: (predicted(p, row) - label) ** 2)(x, y).mean(), Y
    ),
    "ranking": (
        lambda p, x, y: jnp.maximum(
            0.0, 1 - jnp.sign(y[:, None] - y[None]) * (predicted(p, x) - predicted(p, x).T)
        ).mean(), Y,
    ),
    "distances of two samples": (lambda p, x, y: jnp.abs(predicted(p, x) - y.T).mean(), COLUMN),
    "distances with axes added": (lambda p, x, y: jnp.abs(predicted(p, x)[:, 0][:, None] - y[None]).mean(), Y),
    "a kernel": (lambda p, x, y: jnp.exp(-((y - y.T) ** 2) * jnp.square(p["head"]).sum()).mean() + x.sum(), COLUMN),
    "a column of data and a row of weights": (lambda p, x, y: jnp.sin(y * p["row"].sum(0)).mean() + x.sum(), COLUMN),
    "pairs that weights read": (lambda p, x, y: ((predicted(p, x) - y) @ p["row"].T).mean(), Y),
}  # fmt: skip


def found(loss: Callable[[Any, Any], Any], batch: Any) -> list[tuple[str, int]]:
    """Returns names of arrays of the batch, and the number of examples that each of theirs meets."""
    return [(each.input, each.size) for each in batch_broadcasts(trace_loss(loss, P, batch))]


def of_parts(loss: Callable[[Any, Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda p, batch: loss(p, batch["x"], batch["labels"])


@pytest.mark.slow
@pytest.mark.parametrize("case", PAIRED.values(), ids=PAIRED)
def test_labels_that_meet_all_predictions_are_reported(case: tuple[Callable[..., Any], Any]) -> None:
    loss, labels = case
    np.testing.assert_allclose(loss(P, X, labels), loss(P, X, labels[::-1]), rtol=1e-5)
    assert found(of_parts(loss), {"x": X, "labels": labels}) == [("labels", N)]


@pytest.mark.parametrize("case", RIGHT.values(), ids=RIGHT)
def test_other_losses_are_not(case: tuple[Callable[..., Any], Any]) -> None:
    loss, labels = case
    assert found(of_parts(loss), {"x": X, "labels": labels}) == []


def test_weights_of_examples_are_data_too() -> None:
    def loss(p: Any, batch: Any) -> Any:
        return (batch["weights"] * (predicted(p, batch["x"]) - batch["labels"]) ** 2).sum()

    assert found(loss, {"x": X, "labels": COLUMN, "weights": Y}) == [("weights", N)]


@pytest.mark.parametrize(("axis", "names"), [(None, [("rewards", N)]), (0, [])])
def test_a_target_that_is_made_of_an_array_and_gets_no_gradient_is_data_too(axis: int | None, names: object) -> None:
    def loss(p: Any, batch: Any) -> Any:
        after = predicted(p, batch["x"] + 1)[:, 0]
        target = jax.lax.stop_gradient(batch["rewards"] + 0.9 * (1 - batch["done"]) * after)
        value = predicted(p, batch["x"])
        return huber((value if axis is None else value[:, axis]) - target).mean()

    assert found(loss, {"x": X, "rewards": Y, "done": 0 * Y}) == names


def test_pairs_that_the_loss_does_not_read_are_not_reported() -> None:
    def loss(p: Any, batch: Any) -> Any:
        predictions = predicted(p, batch["x"])
        return jnp.mean((predictions[:, 0] - batch["labels"]) ** 2), (predictions - batch["labels"]).mean()

    assert found(loss, {"x": X, "labels": Y}) == []


def test_a_batch_of_one_example_has_no_pairs() -> None:
    assert found(of_parts(PAIRED["squares"][0]), {"x": X[:1], "labels": Y[:1]}) == []


@pytest.mark.parametrize(("case", "shape"), [("squares", f"[{N}]"), ("labels in a column", f"[{N}, 1]")])
def test_the_finding_has_shapes_and_line(case: str, shape: str) -> None:
    loss, labels = PAIRED[case]
    findings = gs.capture(of_parts(loss), P, {"x": X, "labels": labels}).findings()
    (finding,) = [each for each in findings if each.rule == "broadcast"]
    assert finding.name == "labels"
    assert f"has shape {shape} and meets" in finding.why
    assert f"broadcasts them to [{N}, {N}]" in finding.why
    assert finding.source is not None
    assert finding.source.startswith("test_batch_broadcasts.py")
