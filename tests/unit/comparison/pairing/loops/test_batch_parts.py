"""The parts of each value are those that a program calls for it, in whatever loops, and each is read once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.arrays.blocks import Array
from gradscope.comparison.pairing.loops.batch_parts import PartsRule, batch_parts
from gradscope.comparison.pairing.matching import Dumps
from gradscope.dump.interfaces import DumpSource
from gradscope.protocols import implements
from tests.support.data import drawn
from tests.support.dumps import dump_of

_WHOLES = 12
_PARTS = 2


class Sums:
    """A rule by which a value is the sum of its parts, that counts what it reads."""

    def __init__(self) -> None:
        self.read: Counter[tuple[int, str]] = Counter()

    @implements(PartsRule)
    def kind(self, source: DumpSource, key: str) -> tuple[int, ...]:
        return source.entry(key).shape

    @implements(PartsRule)
    def fits(self, whole: tuple[int, ...], parts: Sequence[tuple[int, ...]]) -> bool:
        return {*parts} == {whole}

    @implements(PartsRule)
    def amount(self, source: DumpSource, key: str) -> float:
        self.read[id(source), key] += 1
        return float(source.array(key).ravel()[0])

    @implements(PartsRule)
    def errors(self, wholes: Array, parts: Array) -> Array:
        return np.abs(wholes - parts.sum(1))


def key(call: int) -> str:
    return f"activation/attn#{call + 1}" if call else "activation/attn"


def calls_of(times: int, *, apart: bool) -> list[list[int]]:
    """Which calls a program makes for each value, that calls a layer some times for each part of each batch."""
    batches = _WHOLES // times
    parts = [(batch, part) for batch in range(batches) for part in range(_PARTS)]
    if apart:
        parts.sort(key=lambda each: each[1])
    made = [(batch * times + call, part) for batch, part in parts for call in range(times)]
    return [[made.index((whole, part)) for part in range(_PARTS)] for whole in range(_WHOLES)]


@pytest.mark.parametrize(
    ("times", "apart"), [(1, False), (1, True), (2, False), (3, True), (4, False), (6, True), (12, False)]
)
@pytest.mark.parametrize("of_ref", [True, False])
def test_the_parts_of_each_value_are_found_in_one_reading(times: int, apart: bool, of_ref: bool) -> None:
    calls = calls_of(times, apart=apart)
    amounts = np.random.default_rng(0).random(_WHOLES * _PARTS)
    parts = dump_of({key(call): np.array([amount]) for call, amount in enumerate(amounts)})
    wholes = dump_of({key(whole): np.array([amounts[each].sum()]) for whole, each in enumerate(calls)})
    dumps, rule = Dumps(ref=wholes, cand=parts) if of_ref else Dumps(ref=parts, cand=wholes), Sums()
    found = list(batch_parts(dumps, dumps.ref.keys(), dumps.cand.keys(), rule))
    assert {each.whole: each.parts for each in found} == {
        key(whole): tuple(map(key, each)) for whole, each in enumerate(calls)
    }
    assert {*rule.read.values()} == {1}
    assert len(rule.read) == _WHOLES + _WHOLES * _PARTS


def test_values_whose_shapes_are_no_parts_have_none() -> None:
    wholes = dump_of({key(0): np.zeros(1), key(1): np.zeros((2, 2))})
    parts = dump_of({key(call): np.zeros(1) for call in range(4)})
    assert not list(batch_parts(Dumps(ref=wholes, cand=parts), wholes.keys(), parts.keys(), Sums()))


def test_values_of_two_kinds_of_numbers_are_no_parts_of_one() -> None:
    def loss(weight: Any, batch: Any, *, parts: Sequence[Any]) -> Any:
        total = 0.0
        for dtype, x in zip(parts, jnp.split(batch, len(parts)), strict=True):
            with jax.named_scope("rounded"):
                y = (x @ weight).astype(dtype)
            total = total + jnp.square(y.astype(jnp.float32)).mean()
        return total

    weight, batch = drawn(1, 5, 3).astype(jnp.bfloat16), drawn(2, 4, 5).astype(jnp.bfloat16)
    whole, parts = (
        gs.capture(partial(loss, parts=each), weight, batch, origins=False)
        for each in ([jnp.bfloat16], [jnp.int32, jnp.bfloat16])
    )
    found = gs.compare(whole, parts)
    assert found.verdict == "different"
    assert any(row.name == "rounded" and row.status == "extra" for row in found.rows), found.sentence
