"""How far bounded functions inside layers are at their limits is what NumPy finds in the values, in each iteration.

Nothing else of a dump changes: neither the gradients nor the tensors that it has.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import gradscope as gs
from gradscope.instrument.query import resolve
from tests.oracle.capturing.test_segmented import captured
from tests.support.data import drawn
from tests.support.sampled import sampled

WIDTH = 8
X = drawn(0, 6, WIDTH)


@pytest.fixture(autouse=True)
def _as_users_run_it() -> Iterator[None]:
    with jax.numpy_rank_promotion("allow"):
        yield


def kernels(*names: str, scale: float = 1.0) -> dict[str, jax.Array]:
    return {name: drawn(1 + n, WIDTH, WIDTH, scale=scale) for n, name in enumerate(names)}


def share(values: Any) -> float:
    """Returns the share of the results of a sigmoid within 0.01 of 0 or 1."""
    return float(np.mean((np.asarray(values, np.float64) < 0.01) | (np.asarray(values, np.float64) > 0.99)))


def concentration(weights: Any) -> float:
    wide = np.asarray(weights, np.float64)
    count = wide.shape[-1]
    return float((np.square(wide).sum(-1).mean() - 1 / count) / (1 - 1 / count))


def gated(p: Any, x: Any) -> Any:
    with jax.named_scope("gated"):
        return (x @ p["inner"]) * jax.nn.sigmoid(x @ p["gate"])


def blocks(p: Any, x: Any) -> Any:
    def step(x: Any, block: Any) -> Any:
        with jax.named_scope("block"):
            return x / 4 + gated(block, x), None

    x, _ = jax.lax.scan(step, x, p["blocks"])
    return jnp.square(x @ p["head"]).mean()


def attending(p: Any, x: Any) -> Any:
    with jax.named_scope("attention"):
        weights = jax.nn.softmax((x @ p["query"]) @ (x @ p["key"]).T)
        x = weights @ x
    with jax.named_scope("head"):
        return jnp.square(x @ p["head"]).mean()


@pytest.mark.slow
def test_a_sigmoid_in_a_scan_has_a_number_for_each_iteration() -> None:
    each = [kernels("inner", "gate", scale=scale) for scale in (1.0, 3.0, 0.5)]
    p = {"blocks": jax.tree.map(lambda *leaves: jnp.stack(leaves), *each), **kernels("head")}
    dump = gs.capture(blocks, p, X)
    x, expected = X, {}
    for n, block in enumerate(each):
        expected[f"block[{n}]/gated"] = share(jax.nn.sigmoid(x @ block["gate"]))
        x = x / 4 + gated(block, x)
    known = {each.layer: each.saturated for each in dump.saturations}
    assert known == pytest.approx({name: share for name, share in expected.items() if share > 0.1}, abs=1e-6)
    assert len(known) >= 2
    assert [each.iteration for each in dump.saturations] == sorted(each.iteration for each in dump.saturations)


@pytest.mark.slow
def test_a_softmax_has_its_concentration() -> None:
    p = kernels("query", "key", "head")
    (only,) = gs.capture(attending, p, X).saturations
    assert (only.function, only.layer, only.inputs) == ("softmax", "attention", ())
    assert only.saturated == pytest.approx(concentration(jax.nn.softmax((X @ p["query"]) @ (X @ p["key"]).T)), rel=1e-5)


@pytest.mark.slow
@sampled("wrap", [lambda f: f, jax.checkpoint, jax.jit], ids=["plain", "checkpoint", "jit"])
def test_gradients_and_tensors_are_those_without(wrap: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = kernels("query", "key", "head"), X
    dump = gs.capture(wrap(attending), *arguments)
    monkeypatch.setattr(resolve, "with_bounded_functions", lambda plan, _trace, _spec: plan)
    without = gs.capture(wrap(attending), *arguments)
    assert list(dump) == list(without)
    assert all(dump[key].tobytes() == without[key].tobytes() for key in without)
    assert dump.layers == without.layers
    assert dump.ledger == without.ledger
    assert (len(dump.saturations), len(without.saturations)) == (1, 0)
    expected = jax.grad(attending)(*arguments)
    for name, gradient in expected.items():
        np.testing.assert_allclose(dump[f"param_grad/{name}"], gradient, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_branch_that_did_not_run_has_no_number() -> None:
    def loss(p: Any, x: Any) -> Any:
        def first(x: Any) -> Any:
            with jax.named_scope("first"):
                return jnp.tanh(40 * x @ p["one"]) + x

        def second(x: Any) -> Any:
            with jax.named_scope("second"):
                return jnp.tanh(40 * x @ p["two"]) + x

        return jnp.square(jax.lax.cond(x[0, 0] > 1e3, first, second, x) @ p["head"]).mean()

    assert [each.layer for each in gs.capture(loss, kernels("one", "two", "head"), X).saturations] == ["second"]


@pytest.mark.slow
def test_each_shard_and_each_iteration_of_a_checkpointed_loop_has_its_number() -> None:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("d",))
    p, x = kernels("inner", "gate", "head", scale=2.0), X[:4]

    def sharded(p: Any, x: Any) -> Any:
        rows = PartitionSpec("d")
        mapped = jax.shard_map(gated, mesh=mesh, in_specs=(PartitionSpec(), rows), out_specs=rows)
        return jnp.square(mapped(p, x) @ p["head"]).mean()

    def looped(p: Any, x: Any) -> Any:
        def step(x: Any, _: None) -> Any:
            return gated(p, x) / 4, None

        return jnp.square(jax.lax.scan(jax.checkpoint(step), x, None, length=2)[0] @ p["head"]).mean()

    parts, steps = [x[:2], x[2:]], [x, gated(p, x) / 4]
    for loss, inputs in ((sharded, parts), (looped, steps)):
        known = [each.saturated for each in gs.capture(loss, p, x).saturations]
        assert known == pytest.approx([share(jax.nn.sigmoid(each @ p["gate"])) for each in inputs], abs=1e-6)
        assert len(known) == 2


@pytest.mark.slow
def test_in_segments_the_numbers_are_those_of_one_run() -> None:
    each = [kernels("inner", "gate", scale=3.0) for _ in range(2)]
    p = {"blocks": jax.tree.map(lambda *leaves: jnp.stack(leaves), *each), **kernels("head")}
    full, _ = captured(blocks, (p, X), None)
    parts, messages = captured(blocks, (p, X), 20_000)
    assert "runs" in messages
    assert len(full.manifest.saturations) == 2
    assert parts.manifest.saturations == full.manifest.saturations


def test_without_activations_nothing_is_observed() -> None:
    assert gs.capture(attending, kernels("query", "key", "head"), X, families=["param_grad"]).saturations == ()


def test_a_saved_dump_has_them(tmp_path: Any) -> None:
    dump = gs.capture(attending, kernels("query", "key", "head", scale=4.0), X)
    gs.save(tmp_path / "run.npz", dump)
    with gs.load(tmp_path / "run.npz") as loaded:
        assert loaded.saturations == dump.saturations
        (finding,) = loaded.findings()
    assert (finding.rule, finding.name) == ("saturated", "attention")
    assert finding.why.startswith("computes a softmax that is saturated: ")


@pytest.mark.slow
@sampled("scope", [None, "choice"])
@pytest.mark.parametrize("looped", [False, True])
def test_the_share_of_noise_is_that_of_its_variance_over_what_a_mask_leaves(scope: str | None, looped: bool) -> None:
    noise = jnp.where(jnp.arange(WIDTH) < 6, drawn(7, 6, WIDTH, scale=3.0), -1e9)

    def choose(scores: Any, noise: Any) -> Any:
        with contextlib.nullcontext() if scope is None else jax.named_scope(scope):
            return jax.nn.softmax((scores + noise) / 0.5)

    def loss(p: Any, batch: Any) -> Any:
        def step(x: Any, _: None) -> Any:
            with jax.named_scope("block"):
                return choose(x @ p["one"], batch[1]) @ p["two"], None

        x = jax.lax.scan(step, batch[0], None, length=2)[0] if looped else step(batch[0], None)[0]
        return jnp.square(x @ p["head"]).mean()

    p = kernels("one", "two", "head")
    known = gs.capture(loss, p, (X, noise)).saturations
    x, expected = X, []
    for _ in range(2 if looped else 1):
        scores = np.asarray(x @ p["one"], np.float64)
        spread = np.asarray(noise, np.float64)[:, :6].var(-1).mean()
        expected.append(spread / (spread + scores.var(-1).mean()))
        x = jax.nn.softmax((x @ p["one"] + noise) / 0.5) @ p["two"]
    assert [each.noise for each in known] == pytest.approx(expected, rel=1e-4)
    assert all(bool(each.names) is (scope is not None) for each in known)


@pytest.mark.slow
@sampled(
    ("between", "again"),
    [
        (lambda shares, _: shares, True),
        (lambda shares, _: jnp.where(jnp.tri(6, dtype=bool), shares, -1e9), True),
        (lambda shares, _: jnp.where(jnp.tri(6, dtype=bool), -jnp.inf, shares), True),
        (lambda shares, _: shares + jnp.where(jnp.tri(6, dtype=bool), 0.0, -1e9), True),
        (lambda shares, scores: jnp.where(jnp.tri(6, dtype=bool), shares, scores), False),
        (lambda shares, scores: shares + scores, False),
        (lambda shares, _: 20 * shares, False),
    ],
)
def test_a_softmax_of_a_softmax_is_one_under_a_mask_too(between: Callable[[Any, Any], Any], again: bool) -> None:
    def loss(p: Any, x: Any) -> Any:
        scores = (x @ p["query"]) @ (x @ p["key"]).T / 3
        weights = jax.nn.softmax(between(jax.nn.softmax(scores), scores))
        return jnp.square(weights @ x @ p["head"]).mean()

    assert any(each.again for each in gs.capture(loss, kernels("query", "key", "head"), X).saturations) == again


@pytest.mark.slow
def test_a_line_that_several_blocks_run_is_one_finding() -> None:
    def loss(p: Any, x: Any) -> Any:
        for name in ("first", "second"):
            with jax.named_scope(name):
                weights = jax.nn.softmax((x @ p[name]["query"]) @ (x @ p[name]["key"]).T / 3)
                x = x + jax.nn.softmax(weights) @ x
        return jnp.square(x @ p["head"]).mean()

    blocks = {name: kernels("query", "key") for name in ("first", "second")}
    findings = gs.capture(loss, {**blocks, **kernels("head")}, X).findings()
    assert [(each.name, each.tensors) for each in findings if each.rule == "saturated"] == [("first", 2)]
