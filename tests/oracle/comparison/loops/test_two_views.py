"""An encoder of two views is the same, called for each of them, in whichever order, or once for both."""

from __future__ import annotations

from functools import cache
from itertools import permutations
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
import pytest

import gradscope as gs
from tests.support.data import drawn
from tests.support.sampled import sampled

pytestmark = pytest.mark.usefixtures("compiled_in_a_hurry")

Way: TypeAlias = Literal["in turn", "the other way round", "joined", "mapped"]

PARAMS = {name: drawn(seed, 5, 5) for seed, name in enumerate(("first", "second", "head"))}
VIEWS = {"one": drawn(7, 4, 5), "two": drawn(8, 4, 5)}


@cache
def captured(way: Way, *, stopped: bool = True, exchanged: bool = False) -> gs.Dump:
    def part(params: Any, name: str, x: Any) -> Any:
        with jax.named_scope(name):
            return jnp.tanh(x @ params[name])

    def encoded(params: Any, x: Any) -> Any:
        with jax.named_scope("encoder"):
            return part(params, "second", part(params, "first", x))

    def network(params: Any, one: Any, two: Any) -> tuple[Any, ...]:
        with jax.named_scope("net"):
            match way:
                case "joined":
                    both = encoded(params, jnp.concatenate([one, two]))
                    return (*jnp.split(both, 2), *jnp.split(part(params, "head", both), 2))
                case "mapped":
                    both = jax.vmap(lambda x: encoded(params, x))(jnp.stack([one, two]))
                    return (*both, *part(params, "head", both))
                case "the other way round":
                    b, a = encoded(params, two), encoded(params, one)
                    q, p = part(params, "head", b), part(params, "head", a)
                case _:
                    a, b = encoded(params, one), encoded(params, two)
                    p, q = part(params, "head", a), part(params, "head", b)
            return a, b, p, q

    def loss(params: Any, batch: Any) -> Any:
        a, b, p, q = network(params, batch["one"], batch["two"])
        a, b = map(jax.lax.stop_gradient, (a, b)) if stopped else (a, b)
        p, q = (q, p) if exchanged else (p, q)
        return jnp.square(p - b).mean() + 2.0 * jnp.square(q - a).mean()

    return gs.capture(loss, PARAMS, VIEWS, origins=False)


@sampled("stopped", [True, False])
@pytest.mark.parametrize("way", ["the other way round", "joined", "mapped"])
def test_the_encoder_of_two_views_may_be_called_in_any_way(way: Way, *, stopped: bool) -> None:
    for one, other in permutations((captured("in turn", stopped=stopped), captured(way, stopped=stopped))):
        found = gs.compare(one, other)
        assert found.verdict == "same", found.sentence
        assert {row.status for row in found.rows if row.counts} == {"same"}


@pytest.mark.slow
def test_calls_of_another_order_keep_their_names_where_the_views_are_exchanged() -> None:
    found = gs.compare(captured("in turn"), captured("the other way round", exchanged=True))
    assert found.verdict == "different"
    assert "`one`" in found.sentence
    assert "`two`" in found.sentence
