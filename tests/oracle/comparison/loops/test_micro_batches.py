"""A program that accumulates gradients over parts of the batch is the same as that of the whole batch."""

from __future__ import annotations

from functools import cache
from itertools import permutations
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import gradscope as gs
from tests.support.data import drawn

pytestmark = pytest.mark.usefixtures("compiled_in_a_hurry")

EXAMPLES = 4


def of_part(variables: dict[str, Any], x: Any, *, factor: float = 1.0) -> Any:
    """A network that calls one layer twice."""
    for _ in range(2):
        with jax.named_scope("shared"):
            x = jnp.tanh(x @ variables["w"])
    with jax.named_scope("head"):
        return jnp.square(factor * x).mean()


def in_turn(variables: Any, x: Any, parts: int, **options: Any) -> Any:
    return sum(of_part(variables, each, **options) for each in jnp.split(x, parts)) / parts


def scanned(variables: Any, x: Any, parts: int, **options: Any) -> Any:
    def body(total: Any, part: Any) -> tuple[Any, None]:
        return total + of_part(variables, part, **options), None

    return jax.lax.scan(body, 0.0, x.reshape(parts, -1, x.shape[1]))[0] / parts


WAYS = {
    "whole": of_part,
    "two parts": lambda variables, x, **options: in_turn(variables, x, 2, **options),
    "four parts": lambda variables, x, **options: in_turn(variables, x, 4, **options),
    "two parts, scanned": lambda variables, x, **options: scanned(variables, x, 2, **options),
}


@cache
def captured(way: str, factor: float = 1.0) -> gs.Dump:
    def loss(variables: dict[str, Any], batch: dict[str, Any]) -> Any:
        return WAYS[way](variables, batch["x"], factor=factor)

    return gs.capture(loss, {"w": drawn(1, 3, 3)}, {"x": drawn(2, EXAMPLES, 3)})


@pytest.mark.parametrize(
    ("one", "other"), [each for each in permutations(WAYS, 2) if not all("two parts" in way for way in each)]
)
def test_parts_of_a_batch_are_compared_with_the_whole(one: str, other: str) -> None:
    found = gs.compare(captured(one), captured(other))
    assert found.verdict == "same"
    compared = [row for row in found.rows if row.status == "same" and row.family == "activation"]
    names = {name for row in compared for name in (row.name, *row.counterpart.split(", "))}
    assert {"shared", "shared#2", "head"} <= names, "the loss in a layer is the mean of those of the parts"


@pytest.mark.parametrize(("one", "other"), [("whole", "four parts"), ("four parts", "two parts")])
def test_a_fault_in_them_has_its_place(one: str, other: str) -> None:
    found = gs.compare(captured(one), captured(other, 1.01))
    assert found.verdict == "different"
    assert found.first_divergence.forward is not None
    assert found.first_divergence.forward.name.partition("#")[0] == "head"
