"""What a step computes is recognised, and the others of its kind are what JAX computes in its place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradscope.comparison.diagnosis import step_kinds
from gradscope.comparison.diagnosis.refuting.float_tensors import FloatTensors
from gradscope.comparison.diagnosis.step_kinds import in_its_place, recognised
from gradscope.dump.sources.memory_dump import MemoryDump
from tests.support.dumps import dump_of

IMAGE = np.random.default_rng(2).normal(size=(3, 4, 6, 5))


def _windows(start: float, function: Any) -> Any:
    return np.asarray(jax.lax.reduce_window(IMAGE, start, function, (1, 2, 3, 1), (1, 2, 3, 1), "VALID"))


@pytest.mark.parametrize(
    ("value", "words", "other", "expected"),
    [
        (np.asarray(jax.nn.silu(IMAGE)), "silu", "relu", np.maximum(IMAGE, 0)),
        (_windows(-np.inf, jax.lax.max), "maximum", "mean", _windows(0.0, jax.lax.add) / 6),
        (IMAGE.mean((1, 2)), "mean", "maximum", IMAGE.max((1, 2))),
        (IMAGE.sum((1, 2), keepdims=True), "sum", "minimum", IMAGE.min((1, 2), keepdims=True)),
        (IMAGE[:, -1], "last", "first", IMAGE[:, 0]),
        (IMAGE.reshape(3, -1), "order of axes [0, 1, 2, 3]", "order of axes [0, 3, 1, 2]",
         IMAGE.transpose(0, 3, 1, 2).reshape(3, -1)),
        (IMAGE[:, :2] * np.asarray(jax.nn.sigmoid(IMAGE[:, 2:])), "first half times the sigmoid of the second",
         "second half times the sigmoid of the first", IMAGE[:, 2:] * np.asarray(jax.nn.sigmoid(IMAGE[:, :2]))),
        (IMAGE[:, :, 3:] * IMAGE[:, :, :3], "first half times the second", "odd elements", IMAGE[:, :, 1::2]),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)  # fmt: skip
def test_an_operation_and_what_could_be_in_its_place(value: Any, words: str, other: str, expected: Any) -> None:
    found = [(operation, others) for operation, others in recognised(IMAGE, value) if operation.words == words]
    ((operation, others),) = found
    np.testing.assert_allclose(operation.apply(IMAGE), value, rtol=1e-5, atol=1e-6)
    (named,) = (each for each in others if each.words == other)
    np.testing.assert_allclose(named.apply(IMAGE), expected, rtol=1e-5, atol=1e-6)


def test_windows_leave_out_what_does_not_fill_one() -> None:
    image = IMAGE[:, :, :5]
    pooled = np.asarray(jax.lax.reduce_window(image, -np.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"))
    ((operation, others),) = recognised(image, pooled)
    assert operation.words == "maximum"
    (mean,) = (each for each in others if each.words == "mean")
    expected = image[:, :, :4].reshape(3, 2, 2, 2, 2, 5).mean((2, 4))
    np.testing.assert_allclose(mean.apply(image), expected, rtol=1e-5, atol=1e-6)


def test_what_returns_positive_values_may_be_a_rectifier_of_them() -> None:
    positive = np.abs(IMAGE)
    ((operation, others),) = (each for each in recognised(positive, positive) if each[0].words.startswith("identity"))
    assert operation.words == "identity or relu"
    assert {"relu", "identity"}.isdisjoint(each.words for each in others)
    assert next(recognised(IMAGE, IMAGE))[0].words == "identity"


def test_nothing_is_recognised_in_a_product() -> None:
    assert not list(recognised(IMAGE, IMAGE @ np.random.default_rng(3).normal(size=(5, 5))))
    assert not list(recognised(IMAGE, np.asarray(jnp.cumsum(IMAGE, 1))))


def test_no_function_is_tried_on_very_many_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_kinds, "MOST_ELEMENTS", IMAGE.size - 1)
    assert not list(recognised(IMAGE, np.maximum(IMAGE, 0)))
    assert not list(recognised(IMAGE, IMAGE.reshape(3, -1)))
    assert list(recognised(IMAGE, IMAGE.max((1, 2))))


class _Reading(MemoryDump):
    """A dump that lists what is read of it."""

    def __init__(self, tensors: dict[str, Any]) -> None:
        super().__init__(dump_of(tensors).manifest, tensors)
        self.read: list[str] = []

    def array(self, key: str) -> Any:
        self.read.append(key)
        return super().array(key)


def test_values_of_other_steps_are_read_one_at_a_time_and_only_where_they_may_be_of_another_operation() -> None:
    mean = IMAGE.mean(1)
    dump = _Reading({"activation/image": IMAGE, "activation/mean": mean, "activation/last": IMAGE[:, -1]})

    def others(value: Any) -> Iterator[Any]:
        return FloatTensors(dump).of_size(("activation/image", "activation/mean", "activation/last"), value.size)

    assert in_its_place(IMAGE, IMAGE.max(1) * IMAGE.min(1), others(mean)) is None
    assert dump.read == []
    found = in_its_place(IMAGE, IMAGE.max(1), others(mean))
    assert found is not None
    assert found[1].words == "mean"
    assert dump.read == ["activation/mean"]
