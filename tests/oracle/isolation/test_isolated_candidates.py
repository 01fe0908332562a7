"""Isolated candidates: each layer is judged by what it makes of what the reference gave it, and by nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

import gradscope as gs
from gradscope.comparison import CompareOptions
from gradscope.errors import UsageError
from gradscope.naming import Selection
from tests.oracle.isolation import faulty
from tests.oracle.isolation.isolating import isolated, of_losses, wrong
from tests.support.data import drawn, evenly


@pytest.mark.slow
def test_every_layer_is_judged_forward_and_backward() -> None:
    reference = faulty.capture()
    found = isolated(reference, reference, faulty.with_fault(""), faulty.variables(), faulty.batch())
    handing_on = {entry.site.layer for entry in reference.manifest.entries if entry.family == "activation"}
    assert {row.name for row in found.rows} == handing_on
    judged = [row for layer in found.rows for row in (layer.forward, layer.vjp)]
    assert all(row is not None and row.needed is not None and row.needed < 1e-6 for row in judged)
    assert {origin: len(keys) for origin, keys in found.arguments.items()} == {
        "reference": 11, "candidate": 0, "model": 0,
    }  # fmt: skip


def square_of(x: Array) -> Array:
    with jax.named_scope("square"):
        return x * x


def chain(params: Any, batch: Any, *, power: Any = square_of, gain: float = 1.0) -> Array:
    """dense, square, tail: each reads what the one before hands on."""
    with jax.named_scope("dense"):
        x = (gain * batch["x"]) @ params["w"]
    x = power(x)
    with jax.named_scope("tail"):
        return jnp.sin(x).sum()


VARIABLES = {"w": evenly(-1.0, 1.0, 3, 4)}
BATCH = {"x": evenly(0.2, 1.0, 2, 3)}


@pytest.mark.slow
def test_errors_are_those_of_the_layers_own_function_at_the_references_values() -> None:
    """A layer by hand: its output, and `jax.vjp` of it, at what the reference has."""

    def cube(x: Array) -> Array:
        with jax.named_scope("square"):
            return x * x * x

    one = gs.capture(chain, VARIABLES, BATCH)
    loss = lambda params, batch: chain(params, batch, power=cube, gain=1.5)  # noqa: E731
    (dense, square) = isolated(one, gs.capture(loss, VARIABLES, BATCH), loss, VARIABLES, BATCH).different
    x, y = one["activation/dense"], one["activation/square"]
    value, pull_back = jax.vjp(lambda x: x**3, x)
    assert square.forward is not None and square.vjp is not None  # noqa: PT018 - one thought
    assert square.forward.metrics["rel_l2"] == pytest.approx(distance(value, y))
    (sent,) = pull_back(one["activation_grad/square"])
    assert square.vjp.metrics["rel_l2"] == pytest.approx(distance(sent, one["activation_grad/dense"]))
    assert dense.forward is not None
    assert dense.forward.metrics["rel_l2"] == pytest.approx(0.5)  # 1.5 times what the reference has


def distance(one: Any, reference: Any) -> float:
    return float(np.linalg.norm(np.asarray(one) - reference) / np.linalg.norm(reference))


@jax.custom_vjp
def doubled(x: Array) -> Array:
    return 2.0 * x


doubled.defvjp(lambda x: (2.0 * x, None), lambda _, cotangent: (3.0 * cotangent,))


def looped(params: Any, batch: Any, *, fault: bool = False) -> Array:
    """A scanned and checkpointed block of two layers; in one iteration the second may have a wrong rule."""

    @jax.checkpoint
    def block(x: Array, iteration: Any) -> Array:
        kernel, number = iteration
        with jax.named_scope("mix"):
            x = x @ kernel
        with jax.named_scope("act"):
            return jnp.where(number == 2, doubled(x) if fault else 2.0 * x, 2.0 * x)

    with jax.named_scope("block"):
        x, _ = jax.lax.scan(lambda x, iteration: (block(x, iteration), None), batch["x"], (params["w"], jnp.arange(4)))
    with jax.named_scope("end"):
        return jnp.cos(x).mean()


STACKED = {"w": drawn(0, 4, 3, 3, scale=0.3)}


@pytest.mark.slow
def test_one_iteration_of_a_scan_is_one_row() -> None:
    found = of_losses(looped, lambda params, batch: looped(params, batch, fault=True), STACKED, BATCH)
    assert wrong(found) == ["block[2]/act"]
    assert {row.name for row in found.rows} >= {
        f"block[{iteration}]/{name}" for iteration in range(4) for name in ("mix", "act")
    }
    (row,) = found.different
    assert row.vjp is not None
    assert row.vjp.name == "block[2]/mix"  # the cotangent that it sends back is that of what it reads
    assert row.vjp.metrics["rel_l2"] == pytest.approx(0.5)


def unrolled(params: Any, batch: Any) -> Array:
    """The same network without a loop, its kernels one by one, all of them a little too large."""
    x = batch["x"]
    for iteration in range(4):
        with jax.named_scope(f"block[{iteration}]"):
            with jax.named_scope("mix"):
                x = x @ params["w"][str(iteration)] * (1.0 + 0.01 * (iteration == 1))
            with jax.named_scope("act"):
                x = 2.0 * x
    with jax.named_scope("end"):
        return jnp.cos(x).mean()


@pytest.mark.slow
def test_a_candidate_of_another_layout_runs_on_the_references_parameters_in_its_own() -> None:
    apart = {"w": {str(iteration): STACKED["w"][iteration] for iteration in range(4)}}
    one, other = gs.capture(looped, STACKED, BATCH), gs.capture(unrolled, apart, BATCH)
    found = isolated(one, other, unrolled, apart, BATCH)
    assert wrong(found) == ["block[1]/mix"]
    assert set(found.arguments["reference"]) == {"input/x", *(f"param/w/{iteration}" for iteration in range(4))}


def forked(params: Any, batch: Any, *, fault: bool = False) -> Array:
    with jax.named_scope("dense"):
        x = batch["x"] @ params["w"]
    with jax.named_scope("left"):
        left = doubled(x) if fault else 2.0 * x
    with jax.named_scope("right"):
        right = jnp.sin(x)
    with jax.named_scope("sum"):
        return (left * right).sum()


@pytest.mark.slow
def test_a_wrong_sum_of_cotangents_is_one_row_that_names_all_who_made_it() -> None:
    found = of_losses(forked, lambda params, batch: forked(params, batch, fault=True), VARIABLES, BATCH)
    (row,) = found.different
    assert (row.name, row.shared_with) == ("left", ("right",))
    assert row.to_json()["shared_with"] == ["right"]


@pytest.mark.slow
def test_operations_are_isolated_where_the_dumps_have_them() -> None:
    found = of_losses(chain, lambda params, batch: chain(params, batch, gain=2.0), VARIABLES, BATCH, ops=True)
    assert wrong(found) == ["dense/mul"]


@pytest.mark.slow
def test_a_selection_limits_what_is_reported_and_not_what_is_pinned() -> None:
    loss = lambda params, batch: chain(params, batch, gain=1.5)  # noqa: E731
    one, other = gs.capture(chain, VARIABLES, BATCH), gs.capture(loss, VARIABLES, BATCH)
    for patterns, rows, differing in ((["square", "tail"], 2, []), (["dense"], 1, ["dense"])):
        options = CompareOptions(selection=Selection.parse(patterns))
        found = isolated(one, other, loss, VARIABLES, BATCH, options=options)
        assert (len(found.rows), wrong(found)) == (rows, differing)


def test_a_layer_whose_output_the_reference_lacks_is_judged_by_what_the_layer_behind_it_reads() -> None:
    loss = lambda params, batch: chain(params, batch, gain=1.5)  # noqa: E731
    one = gs.capture(chain, VARIABLES, BATCH, exclude=["activation*/dense"])
    found = isolated(one, gs.capture(loss, VARIABLES, BATCH), loss, VARIABLES, BATCH)
    assert wrong(found) == ["dense"]
    assert [(each.name, each.why) for each in found.left_out] == [("dense", "the reference has no such activation")]


def test_a_gradient_that_needs_a_missing_cotangent_is_not_judged() -> None:
    one = gs.capture(chain, VARIABLES, BATCH, exclude=["activation_grad/square"])
    found = isolated(one, gs.capture(chain, VARIABLES, BATCH), chain, VARIABLES, BATCH)
    assert wrong(found) == []
    assert [(each.name, each.why) for each in found.left_out] == [
        ("activation_grad/dense", "it depends on activation_grad/square, which the reference does not have")
    ]
    by_name = {row.name: row for row in found.rows}
    assert by_name["square"].vjp is None
    assert by_name["dense"].vjp is not None


def test_parameters_that_the_reference_lacks_are_the_candidates_own() -> None:
    one = gs.capture(chain, VARIABLES, BATCH, exclude=["param/*"])
    found = isolated(one, gs.capture(chain, VARIABLES, BATCH), chain, VARIABLES, BATCH)
    assert (wrong(found), found.arguments["candidate"]) == ([], ["param/w"])


def branching(params: Any, batch: Any, *, gain: float = 1.0) -> Array:
    def dear(x: Array) -> Array:
        with jax.named_scope("dear"):
            return gain * jnp.sin(x)

    def cheap(x: Array) -> Array:
        with jax.named_scope("cheap"):
            return gain * x

    with jax.named_scope("dense"):
        x = batch["x"] @ params["w"]
    x = jax.lax.cond(batch["x"].sum() > 0, dear, cheap, x)
    with jax.named_scope("end"):
        return jnp.square(x).sum()


@pytest.mark.slow
def test_of_a_branch_the_one_taken_is_judged() -> None:
    found = of_losses(branching, lambda params, batch: branching(params, batch, gain=1.1), VARIABLES, BATCH)
    assert wrong(found) == ["dear"]
    assert [each.name for each in found.left_out] == ["cheap"]


def prepared(params: Any, batch: Any, *, kept: float = 0.5) -> Array:
    """Behind a loop that reverse mode cannot pass, and with a random mask."""
    with jax.named_scope("prepare"):
        x = jax.lax.while_loop(lambda x: x.sum() < 9.0, lambda x: 2.0 * x, batch["x"])
    with jax.named_scope("drop"):
        x = jnp.where(jax.random.bernoulli(batch["key"], 0.5, x.shape), x / kept, 0.0)
    with jax.named_scope("dense"):
        return (x @ params["w"]).sum()


@pytest.mark.slow
def test_random_masks_are_generated_again_and_loops_without_reverse_mode_run_forward() -> None:
    batch = {**BATCH, "key": jax.random.key(3)}
    found = of_losses(prepared, lambda params, batch: prepared(params, batch, kept=0.25), VARIABLES, batch)
    assert wrong(found) == ["drop"]
    assert found.arguments["model"] == ["input/key"]
    prepare = found.rows[0]
    assert (prepare.name, prepare.vjp) == ("prepare", None)


def test_a_reference_of_statistics_holds_nothing_to_judge_by() -> None:
    one = gs.capture(chain, VARIABLES, BATCH, stats_only=True)
    with pytest.raises(UsageError, match="has statistics and no tensors"):
        isolated(one, gs.capture(chain, VARIABLES, BATCH), chain, VARIABLES, BATCH)


def after_all_layers(params: Any, batch: Any, *, sign: float = 1.0) -> tuple[Array, dict[str, Array]]:
    with jax.named_scope("dense"):
        x = batch["x"] @ params["w"]
    outputs = {"mean": sign * x.mean(), "signs": jnp.sign(sign * x).astype(jnp.int32), "key": jax.random.key(3)}
    return sign * jnp.square(x).sum() + x.sum(), outputs


@pytest.mark.slow
def test_what_is_made_after_the_last_layer_has_rows_of_its_own() -> None:
    found = of_losses(after_all_layers, lambda p, b: after_all_layers(p, b, sign=-1.0), VARIABLES, BATCH)
    assert wrong(found) == ["(loss)", "aux/mean", "aux/signs"]
    assert [(each.name, each.why) for each in found.left_out] == [("aux/key", "it is a random key")]


def test_terms_are_left_to_the_gradients_that_they_are_parts_of() -> None:
    found = of_losses(after_all_layers, after_all_layers, VARIABLES, BATCH, terms=True)
    terms = [each for each in found.left_out if each.name.startswith("term/")]
    assert terms
    assert {each.why for each in terms} == {"it is a term of a gradient, and only the full gradient is judged"}


def test_a_dump_of_another_model_is_refused() -> None:
    one = gs.capture(lambda params, batch: (params["v"] * batch["z"]).sum(), {"v": jnp.ones(2)}, {"z": jnp.ones(2)})
    with pytest.raises(UsageError, match="is not one of candidate: it has param/v, expected param/w, input/x"):
        isolated(one, one, chain, VARIABLES, BATCH)


def rated(factor: float) -> Callable[[Any, Any], Array]:
    """A layer with a rule that refuses to have its rate differentiated, whose derivative is wrong by a factor."""

    @jax.custom_vjp
    def strict(x: Array, rate: Array) -> Array:
        return rate * jnp.tanh(x)

    def forward(x: Any, rate: Any) -> tuple[Array, tuple[Array, Array]]:
        assert not rate.perturbed
        return strict(x.value, rate.value), (x.value, rate.value)

    def backward(kept: tuple[Array, Array], cotangent: Array) -> tuple[Array, Array]:
        x, rate = kept
        return factor * cotangent * rate / jnp.cosh(x) ** 2, jnp.zeros_like(rate)

    strict.defvjp(forward, backward, symbolic_zeros=True)

    def loss(params: Any, batch: Any) -> Array:
        with jax.named_scope("dense"):
            x = batch["x"] @ params["w"]
        with jax.named_scope("ruled"):
            x = strict(x, batch["rate"])
        with jax.named_scope("end"):
            return jnp.square(x).mean()

    return loss


@pytest.mark.parametrize("factor", [1.0, 1.5])
def test_a_layer_whose_rule_refuses_an_input_is_isolated(factor: float) -> None:
    found = of_losses(rated(1.0), rated(factor), VARIABLES, {**BATCH, "rate": jnp.float32(1.5)})
    assert wrong(found) == ([] if factor == 1.0 else ["ruled"])
    assert {row.name for row in found.rows} == {"dense", "ruled", "end"}


def rectified(*, inside: bool, gain: float = 1.0) -> Callable[[Any, Any], Array]:
    """Two layers with a rectifier each, inside of its scope or behind it, and a head."""

    def loss(params: Any, batch: Any) -> Array:
        x = batch["x"]
        for name in ("first", "second"):
            with jax.named_scope(name):
                x = x @ params[name]
                x = jax.nn.relu(x) if inside else x
            x = x if inside else jax.nn.relu(x)
        with jax.named_scope("head"):
            x = gain * (x @ params["head"])
        return jnp.square(x).mean()

    return loss


@pytest.mark.slow
@pytest.mark.parametrize("inside", [True, False])
def test_an_activation_function_that_another_layer_applies_is_no_error(inside: bool) -> None:
    draw = np.random.default_rng(3).normal
    weights = {name: draw(size=(5, 5)).astype(np.float32) for name in ("first", "second", "head")}
    batch = {"x": draw(size=(7, 5)).astype(np.float32)}
    right = of_losses(rectified(inside=inside), rectified(inside=not inside), weights, batch)
    assert wrong(right) == []
    assert right.rows
    faulty_head = rectified(inside=not inside, gain=1.5)
    assert wrong(of_losses(rectified(inside=inside), faulty_head, weights, batch)) == ["head"]


@pytest.mark.slow
@pytest.mark.parametrize(("factor", "blamed"), [(1.0, []), (1.2, ["down"])])
def test_layers_that_return_float32_are_judged_by_what_most_of_them_compute_in(
    factor: float, blamed: list[str]
) -> None:
    def network(dtype: Any, factor: float) -> Callable[[Any, Any], Array]:
        def dense(name: str, weights: Any, x: Array) -> Array:
            with jax.named_scope(name):
                x = (x.astype(dtype) @ weights[name].astype(dtype)).astype(jnp.float32)
                return factor * x if name == "down" else x

        return lambda weights, x: jnp.square(dense("down", weights, jnp.tanh(dense("up", weights, x)))).mean()

    weights = {"up": drawn(0, 8, 16), "down": drawn(1, 16, 4)}
    found = of_losses(network(jnp.float32, 1.0), network(jnp.bfloat16, factor), weights, drawn(2, 6, 8))
    assert wrong(found) == blamed
