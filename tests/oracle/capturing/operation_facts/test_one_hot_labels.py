"""Labels that begin at 1 are told where one_hot makes zeros of the last class; labels that stand for none are not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.capturing.explain.one_hot_labels import labels_from_one
from gradscope.tracing.tracer import trace_loss
from tests.support.data import drawn

CLASSES = 4
P = {"w": drawn(0, 3, CLASSES), "table": drawn(1, CLASSES, 3)}
X = drawn(2, 6, 3)
FROM_ONE = np.array([1, 4, 2, 3, 4, 1], np.int32)

_Compare = Callable[[Any, Any], Any]
#: By name: how log-probabilities are compared with labels.
COMPARED: Mapping[str, _Compare] = {
    "one_hot": lambda z, y: -(jax.nn.one_hot(y, CLASSES) * z).sum(1),
    "a comparison": lambda z, y: -(z * (jnp.arange(CLASSES)[None] == y[:, None]).astype(jnp.float32)).sum(1),
    "one at a time": jax.vmap(lambda z, y: -(jax.nn.one_hot(y, CLASSES) @ z)),
    "smooth labels": lambda z, y: -((jax.nn.one_hot(y, CLASSES) * 0.9 + 0.025) * z).sum(1),
    "squares": lambda z, y: jnp.square(jax.nn.one_hot(y, CLASSES) - z).sum(1),
    "another axis": lambda z, y: -(jax.nn.one_hot(y, CLASSES, axis=0) * z.T).sum(0),
}


def found(compare: _Compare, labels: Any = FROM_ONE) -> Any:
    batch = {"x": X, "y": jnp.asarray(labels)}
    trace = trace_loss(loss_of(compare), P, batch)
    return list(labels_from_one(trace, jax.tree_util.tree_leaves((P, batch))))


def loss_of(compare: _Compare) -> Callable[[Any, Any], Any]:
    return lambda p, b: compare(jax.nn.log_softmax(b["x"] @ p["w"]), b["y"]).mean()


@pytest.mark.parametrize("compare", COMPARED.values(), ids=COMPARED)
def test_labels_from_one_on_are_counted(compare: _Compare) -> None:
    (one,) = found(compare)
    assert (one.looked_up, one.input, one.rows, one.index, one.beyond, one.indices) == ("classes", "y", 4, 4, 2, 6)


@pytest.mark.parametrize(
    "labels",
    [
        FROM_ONE - 1,
        np.array([1, 2, 3, 3, 2, 1], np.int32),  # of which none is without a class
        np.array([0, 4, 2, 3, 4, 1], np.int32),  # 4 stands for none
        np.array([1, 255, 2, 3, 255, 1], np.int32),
        np.array([1, -1, 4, 3, -1, 1], np.int32),
        np.zeros(0, np.int32),
    ],
)
def test_other_labels_are_none(labels: Any) -> None:
    assert found(lambda z, y: -(jax.nn.one_hot(y, CLASSES) * z[: len(y)]).sum(1), labels) == []


@pytest.mark.parametrize(
    "compare",
    [
        lambda z, y: z.sum(1) + jax.nn.one_hot(y, CLASSES).sum(1),  # a count
        lambda z, y: jnp.where(jnp.arange(CLASSES)[None] == y[:, None], 0.0, z).sum(1),  # a mask
        lambda z, y: z.sum(1) * (y == 4).astype(jnp.float32),
        lambda z, y: -(jax.nn.one_hot(y - 1, CLASSES) * z).sum(1),
    ],
)
def test_what_compares_no_predictions_with_labels_is_none(compare: _Compare) -> None:
    assert found(compare) == []


def test_words_that_one_hot_looks_up_are_labels_too() -> None:
    (one,) = found(lambda z, y: z.sum(1) + (jax.nn.one_hot(y, CLASSES) @ (z.T @ X)).sum(1))
    assert one.beyond == 2


def test_the_finding_has_numbers_and_line() -> None:
    batch = {"x": X, "y": jnp.asarray(FROM_ONE)}
    findings = gs.capture(loss_of(COMPARED["one_hot"]), P, batch).findings()
    (finding,) = [each for each in findings if each.rule == "out-of-bounds"]
    assert (finding.family, finding.name) == ("input", "y")
    assert finding.why.startswith("has numbers from 1 to 4 and none that is 0, of classes 0 to 3: 2 of 6 have no class")
    assert finding.source is not None
    assert finding.source.startswith("test_one_hot_labels.py")
