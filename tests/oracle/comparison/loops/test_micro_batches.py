"""A program that accumulates gradients over parts of the batch is the same as that of the whole batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import permutations
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import gradscope as gs
from tests.support.data import drawn
from tests.support.sampled import sampled

pytestmark = pytest.mark.usefixtures("compiled_in_a_hurry")

EXAMPLES = 4


def of_part(
    variables: dict[str, Any], x: Any, *, factor: float = 1.0, names: tuple[str, str] = ("shared", "head")
) -> Any:
    """A network that calls one layer twice."""
    for _ in range(2):
        with jax.named_scope(names[0]):
            x = jnp.tanh(x @ variables[names[0]])
    with jax.named_scope(names[1]):
        return jnp.square(factor * x).mean()


#: Returns the parts of a batch.
Parts = Callable[[Any, int], Sequence[Any]]


def every_nth(x: Any, parts: int) -> Sequence[Any]:
    return [x[first::parts] for first in range(parts)]


def backwards(x: Any, parts: int) -> Sequence[Any]:
    return jnp.split(x, parts)[::-1]


def overlapping(x: Any, parts: int) -> Sequence[Any]:
    size = len(x) // parts
    return [x[start : start + size] for start in range(0, parts * (size - 1), size - 1)]


def shuffled(x: Any, parts: int) -> Sequence[Any]:
    return jnp.split(x[jnp.array([2, 0, 3, 1])], parts)


def in_turn(variables: Any, x: Any, parts: int, *, of: Parts = jnp.split, **options: Any) -> Any:
    return sum(of_part(variables, each, **options) for each in of(x, parts)) / parts


def of_unequal(variables: Any, x: Any, **options: Any) -> Any:
    return (of_part(variables, x[:1], **options) + 3 * of_part(variables, x[1:], **options)) / 4


def scanned(variables: Any, x: Any, parts: int, *, of: Parts = jnp.split, **options: Any) -> Any:
    def body(total: Any, part: Any) -> tuple[Any, None]:
        return total + of_part(variables, part, **options), None

    return jax.lax.scan(body, 0.0, jnp.stack(of(x, parts)))[0] / parts


def mapped(variables: Any, x: Any, parts: int, *, of: Parts = jnp.split, **options: Any) -> Any:
    return jax.vmap(lambda part: of_part(variables, part, **options))(jnp.stack(of(x, parts))).mean()


WAYS = {
    "whole": of_part,
    "two parts": lambda variables, x, **options: in_turn(variables, x, 2, **options),
    "four parts": lambda variables, x, **options: in_turn(variables, x, 4, **options),
    "two parts, scanned": lambda variables, x, **options: scanned(variables, x, 2, **options),
}


#: Parts that are made otherwise, each compared with the whole.
OTHER_PARTS: dict[str, Any] = {
    "every second": lambda variables, x, **options: in_turn(variables, x, 2, of=every_nth, **options),
    "every second, scanned": lambda variables, x, **options: scanned(variables, x, 2, of=every_nth, **options),
    "backwards": lambda variables, x, **options: in_turn(variables, x, 4, of=backwards, **options),
    "shuffled": lambda variables, x, **options: in_turn(variables, x, 2, of=shuffled, **options),
    "mapped": lambda variables, x, **options: mapped(variables, x, 2, **options),
    "every second, mapped": lambda variables, x, **options: mapped(variables, x, 2, of=every_nth, **options),
    "unequal": of_unequal,
}


@cache
def captured(way: str, factor: float = 1.0, names: tuple[str, str] = ("shared", "head")) -> gs.Dump:
    def loss(variables: dict[str, Any], batch: dict[str, Any]) -> Any:
        return {**WAYS, **OTHER_PARTS}[way](variables, batch["x"], factor=factor, names=names)

    return gs.capture(loss, *arguments(names[0]))


def arguments(name: str = "shared") -> tuple[dict[str, Any], dict[str, Any]]:
    return {name: drawn(1, 3, 3)}, {"x": drawn(2, EXAMPLES, 3)}


def joined(one: str, other: str) -> set[str]:
    """Returns the names of the values that are the same in two programs, which have to be the same."""
    found = gs.compare(captured(one), captured(other))
    assert found.verdict == "same"
    compared = [row for row in found.rows if row.status == "same" and row.family == "activation"]
    return {name for row in compared for name in (row.name, *row.counterpart.split(", "))}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("one", "other"), [each for each in permutations(WAYS, 2) if not all("two parts" in way for way in each)]
)
def test_parts_of_a_batch_are_compared_with_the_whole(one: str, other: str) -> None:
    names = joined(one, other)
    assert {"shared", "shared#2", "head"} <= names, "the loss in a layer is the mean of those of the parts"


@pytest.mark.slow
@sampled("parts", OTHER_PARTS)
def test_parts_in_any_order_are_compared_with_the_whole(parts: str) -> None:
    for one, other in (("whole", parts), (parts, "whole")):
        assert {"shared", "shared#2", "head"} <= joined(one, other)


def test_parts_that_are_mapped_over_are_compared_with_those_of_a_loop() -> None:
    for one, other in permutations(("two parts", "mapped")):
        assert {"shared", "shared#2", "head", "head#2"} <= joined(one, other)


#: Two ways to cut a batch of which no part of one is made of parts of the other.
OTHERWISE_CUT = [("two parts", "every second"), ("two parts", "unequal"), ("unequal", "every second, scanned")]


@pytest.mark.parametrize(("one", "other"), [*OTHERWISE_CUT, *(each[::-1] for each in OTHERWISE_CUT)])
def test_parts_are_compared_with_those_that_are_cut_otherwise(one: str, other: str) -> None:
    assert {"shared", "shared#2", "shared#3", "shared#4"} <= joined(one, other) | {"shared#3", "shared#4"}


@pytest.mark.slow
@pytest.mark.parametrize("other", ["whole", "two parts", "every second"])
def test_parts_under_other_names_are_compared_by_the_parameters_of_their_layers(other: str) -> None:
    for one, two in permutations((captured("two parts"), captured(other, names=("layer", "end")))):
        found = gs.compare(one, two)
        assert found.verdict == "same", found.sentence
        known = {row.name for row in found.rows if row.family == "activation" and row.status == "same"}
        assert {"shared", "shared#2"} <= known or {"layer", "layer#2"} <= known
    wrong = gs.compare(captured("whole"), captured("every second", 1.01, ("layer", "end")))
    assert wrong.first_divergence.forward is not None
    assert wrong.first_divergence.forward.name == "head"


@pytest.mark.slow
@sampled(
    ("one", "other"),
    [
        *(("whole", "four parts"), ("four parts", "two parts"), *OTHERWISE_CUT),
        *(("whole", parts) for parts in OTHER_PARTS),
    ],
)
def test_a_fault_in_them_has_its_place(one: str, other: str) -> None:
    found = gs.compare(captured(one), captured(other, 1.01))
    assert found.verdict == "different"
    assert found.first_divergence.forward is not None
    assert found.first_divergence.forward.name.partition("#")[0] == "head"


@sampled(
    ("weights", "sentence"),
    [
        ((0.5, 0.25, 0.25, 0.25), "the candidate counts its 4 parts of the batch 2, 1, 1 and 1 times"),
        ((0.25, 0.25, 0.5, 0.125), "the candidate counts its 4 parts of the batch 1, 1, 2 and 0.5 times"),
        ((0.5, 1.0), "the candidate counts its 2 parts of the batch 1 and 2 times"),
        ((1.0, 1.0, 1.0, 1.0), "as a sum over 4 parts of the batch is of their mean"),
        ((0.5, 0.5, 0.5, 0.5), "it is 2 times the reference's"),
    ],
)
def test_how_often_each_part_counts_is_told(weights: tuple[float, ...], sentence: str) -> None:
    def accumulated(variables: Any, batch: Any) -> Any:
        parts = jnp.split(batch["x"], len(weights))
        return sum(weight * of_part(variables, part) for weight, part in zip(weights, parts, strict=True))

    found = gs.compare(captured("whole"), gs.capture(accumulated, *arguments()))
    assert sentence in found.sentence
    assert ("parts" in found.sentence) is (weights != (0.5,) * 4)
    assert found.losses is not None
    counted = tuple(weight * len(weights) for weight in weights)
    assert found.losses.parts == (pytest.approx(counted, rel=1e-4) if len({*counted}) > 1 else ())


@pytest.mark.slow
def test_targets_in_another_order_than_the_examples_are_told_at_the_loss() -> None:
    def loss(parts: Parts | None) -> Any:
        def of(x: Any, y: Any) -> Any:
            with jax.named_scope("dense"):
                x = jnp.tanh(x)
            with jax.named_scope("error"):
                return jnp.square(x - y).mean()

        def of_all(w: Any, batch: Any) -> Any:
            x, y = w[None] * batch["x"], batch["y"]
            if parts is None:
                return of(x, y)
            return sum(of(*each) for each in zip(parts(x, 2), jnp.split(y, 2), strict=True)) / 2

        return of_all

    batch = {"x": drawn(2, EXAMPLES, 3), "y": drawn(3, EXAMPLES, 3)}
    whole, wrong = (gs.capture(loss(parts), drawn(1, 3), batch) for parts in (None, every_nth))
    found = gs.compare(whole, wrong)
    assert found.first_divergence.forward is not None
    assert found.first_divergence.forward.name == "error"


@pytest.mark.slow
def test_calls_of_a_layer_with_other_numbers_of_axes_are_no_parts() -> None:
    def network(name: str, factor: float = 1.0) -> Callable[[Any, Any], Any]:
        def loss(variables: Any, x: Any) -> Any:
            with jax.named_scope(name):
                x = jnp.tanh(x @ variables[name])
            x = factor * x.mean(1)
            with jax.named_scope(name):
                return jnp.square(jnp.sin(x @ variables[name])).mean()

        return loss

    kernel, x = drawn(0, 3, 3), drawn(1, EXAMPLES, 5, 3)
    one = gs.capture(network("one"), {"one": kernel}, x)
    assert not gs.compare(one, gs.capture(network("other", 1.1), {"other": kernel}, x))


@pytest.mark.slow
def test_parts_that_read_other_examples_make_no_errors_anew() -> None:
    def captured_of(parts: Parts) -> gs.Dump:
        return gs.capture(lambda variables, batch: in_turn(variables, batch["x"], 2, of=parts), *arguments())

    found = gs.compare(captured_of(every_nth), captured_of(overlapping))
    assert "in what it reads" in found.sentence, found.sentence
    assert "made anew" not in found.sentence, found.sentence
