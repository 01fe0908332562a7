"""A softmax over another axis than the one that its shares weight is told, and which positions are never read."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.dump.manifest.codec import manifest_to_text
from gradscope.dump.manifest.operation_facts import SoftmaxUse
from tests.support.data import drawn
from tests.support.sampled import sampled

X = drawn(0, 4, 6, 8)
PARAMS = {name: drawn(1 + n, 8, 8, scale=0.3) for n, name in enumerate(("query", "key", "value", "out"))}
Attend = Callable[[Any, Any, Any, int], Any]


def plain(query: Any, key: Any, value: Any, axis: int) -> Any:
    return jax.nn.softmax(jnp.einsum("nqd,nkd->nqk", query, key), axis=axis) @ value


def heads(query: Any, key: Any, value: Any, axis: int) -> Any:
    query, key, value = (each.reshape(4, 6, 2, 4) for each in (query, key, value))
    shares = jax.nn.softmax(jnp.einsum("nqhd,nkhd->nhqk", query, key), axis=axis)
    return jnp.einsum("nhqk,nkhd->nqhd", shares, value).reshape(4, 6, 8)


def dropped_out(query: Any, key: Any, value: Any, axis: int) -> Any:
    shares = jax.nn.softmax(jnp.einsum("nqd,nkd->nkq", query, key), axis=axis)
    kept = jnp.where(jax.random.bernoulli(jax.random.key(0), 0.9, shares.shape), shares / 0.9, 0.0)
    return jnp.einsum("nkq,nkd->nqd", kept, value)


def written_out(query: Any, key: Any, value: Any, axis: int) -> Any:
    scores = jnp.einsum("nqd,nkd->nqk", query, key)
    exponentials = jnp.exp(scores - scores.max(axis, keepdims=True))
    return (exponentials / exponentials.sum(axis, keepdims=True)).astype(jnp.bfloat16).astype(jnp.float32) @ value


def mapped(query: Any, key: Any, value: Any, axis: int) -> Any:
    return jax.vmap(jax.checkpoint(lambda q, k, v: jax.nn.softmax(q @ k.T, axis=axis) @ v))(query, key, value)


def mapped_plainly(query: Any, key: Any, value: Any, axis: int) -> Any:
    return jax.vmap(lambda q, k, v: jax.nn.softmax(q @ k.T, axis=axis) @ v)(query, key, value)


def slots(query: Any, key: Any, value: Any, axis: int) -> Any:
    shares = jax.nn.softmax(jnp.einsum("nqd,nkd->nqk", query, key), axis=axis)
    return (shares / shares.sum(-1, keepdims=True)) @ value


def told(attend: Attend, axis: int) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    def loss(p: Any, x: Any) -> Any:
        mixed = attend(x @ p["query"], x @ p["key"], x @ p["value"], axis)
        return jnp.square(mixed @ p["out"]).mean()

    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        dump = gs.capture(loss, PARAMS, X)
    assert not any(each.rule == "saturated" for each in dump.findings())
    manifest_to_text(dump.manifest)  # whatever numbers JAX counts the axes by
    return [(each.over, each.summed) for each in dump.manifest.softmax_uses]


@pytest.mark.slow
@sampled(
    ("attend", "right", "wrong", "expected"),
    [(plain, -1, 1, ((1,), (2,))), (plain, 2, 0, ((0,), (2,))), (heads, -1, 2, ((2,), (3,))),
     (dropped_out, 1, 2, ((2,), (1,))), (written_out, -1, 0, ((0,), (2,))), (mapped, -1, 0, ((1,), (2,))),
     (mapped_plainly, -1, 0, ((1,), (2,)))],
)  # fmt: skip
def test_the_axes_are_those_of_the_softmax_and_of_the_sum(
    attend: Attend, right: int, wrong: int, expected: tuple[Any, Any]
) -> None:
    assert told(attend, right) == []
    assert told(attend, wrong) == [expected]


def test_shares_that_are_normalised_again_are_another_matter() -> None:
    assert told(slots, 1) == []


@pytest.mark.slow
@pytest.mark.parametrize("rematerialised", [False, True])
def test_the_products_of_a_backward_pass_in_the_loss_add_up_over_the_queries(rematerialised: bool) -> None:
    def energy(w: Any, x: Any) -> Any:
        return jnp.square(jax.nn.softmax((x @ w) @ x.T) @ x).sum()

    differentiated = jax.checkpoint(energy) if rematerialised else energy
    dump = gs.capture(lambda w, x: jnp.square(jax.grad(differentiated, 1)(w, x)).sum(), PARAMS["query"], X[0])
    assert dump.manifest.softmax_uses == ()


def test_it_is_a_sentence_with_the_line() -> None:
    dump = gs.capture(lambda w, x: (jax.nn.softmax(x @ w, axis=0) @ x.T).sum(), drawn(1, 8, 8), X[0])
    (found,) = dump.manifest.softmax_uses
    assert found.sentence.startswith("the softmax at test_softmax_uses.py:")
    assert found.sentence.endswith(" is over axis 0 of [6, 8], and what its shares weight is added up over axis 1")


BEFORE, OWN, BEHIND = np.tril(np.ones((6, 6), bool), -1), np.eye(6, dtype=bool), np.triu(np.ones((6, 6), bool), 1)


@pytest.mark.slow
@sampled(
    ("mask", "reads"),
    [(BEFORE | OWN, None), (BEFORE | OWN | BEHIND, None), (BEHIND | OWN, (0, 6 / 36, 15 / 36)),
     (BEHIND, (0, 0, 15 / 36)), (BEFORE | BEHIND, (15 / 36, 0, 15 / 36))],
    ids=["causal", "none", "the wrong way round", "behind alone", "all others"],
)  # fmt: skip
@pytest.mark.parametrize("fill", [-1e9, -1e4])
@pytest.mark.parametrize("named", [False, True])
def test_positions_that_are_never_read_are_told(mask: Any, reads: Any, fill: float, named: bool) -> None:
    def attend(query: Any, key: Any, value: Any, _: int) -> Any:
        scores = jnp.where(mask[None], jnp.einsum("nqd,nkd->nqk", query, key), fill)
        with jax.named_scope("shares") if named else contextlib.nullcontext():
            shares = jax.nn.softmax(scores)
        return shares @ value

    def loss(p: Any, x: Any) -> Any:
        return jnp.square(attend(x @ p["query"], x @ p["key"], x @ p["value"], -1) @ p["out"]).mean()

    found = gs.capture(loss, PARAMS, X).manifest.softmax_uses
    # The last position has nothing behind it: its row of equal shares counts for nothing.
    assert [each.reads for each in found] == ([] if reads is None else [pytest.approx(reads, abs=1e-6)])


@pytest.mark.slow
@sampled(("mask", "told"), [(BEFORE | OWN, False), (BEHIND, True)], ids=["causal", "its opposite"])
@pytest.mark.parametrize("heads", [1, 2, 4], ids=["shared", "grouped", "its own"])
def test_heads_that_share_their_keys_hide_no_positions(mask: Any, told: bool, heads: int) -> None:
    def loss(p: Any, x: Any) -> Any:
        query = (x @ p["query"]).reshape(4, 6, 4, 2)
        key, value = ((x @ p[name])[..., : 2 * heads].reshape(4, 6, heads, 2) for name in ("key", "value"))
        mixed = jax.nn.dot_product_attention(query, key, value, mask=mask)
        return jnp.square(mixed.reshape(4, 6, 8) @ p["out"]).mean()

    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        found = gs.capture(loss, PARAMS, X).manifest.softmax_uses
    assert [each.reads for each in found] == ([pytest.approx((0, 0, 15 / 36), abs=1e-6)] if told else [])


def test_which_positions_are_read_is_a_sentence() -> None:
    use = SoftmaxUse(shape=(6, 6), over=(1,), summed=(1,), reads=(0.0, 0.1, 0.4), source="net.py:3")
    assert use.sentence == (
        "the softmax at net.py:3 lets a position read itself and later positions, and never earlier positions"
    )


@pytest.mark.slow
@pytest.mark.parametrize("axis", [0, 1])
def test_a_loss_whose_softmax_is_over_the_examples_says_so(axis: int) -> None:
    labels = np.array([1, 0, 7, 3])

    def loss(p: Any, x: Any) -> Any:
        return -jax.nn.log_softmax(x @ p["out"], axis=axis)[jnp.arange(4), labels].mean()

    found = [each.sentence for each in gs.capture(loss, PARAMS, X[:, 0]).manifest.softmax_uses]
    assert ["over axis 0 of [4, 8], that of the examples" in each for each in found] == [True] * (axis == 0)
