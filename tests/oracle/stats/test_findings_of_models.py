"""Findings of whole models in which a rule that looks at one tensor alone would miss the fault, or find another."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.presentation.tables.facts import facts
from tests.support.data import drawn, filled

X = drawn(0, 16, 8)
LABELS = jax.device_put(np.arange(16, dtype=np.int32) % 4)


@pytest.fixture(autouse=True)
def _as_users_run_it() -> Any:
    """The models add vectors to matrices, as users' models do."""
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield


def kernel(seed: int, *shape: int, scale: float = 1.0) -> jax.Array:
    return drawn(seed, *shape, scale=scale * shape[0] ** -0.5)


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1).mean()


def classified(variables: Any, batch: Any) -> jax.Array:
    with jax.named_scope("head"):
        logits = batch[0] @ variables["head"]
    return cross_entropy(logits, batch[1])


@pytest.mark.slow
def test_a_loss_of_nan_is_reported_where_every_tensor_is_finite() -> None:
    variables = {"head": kernel(1, 8, 4)}
    dump = gs.capture(classified, variables, (X, LABELS.at[5].set(4)))
    assert dump.loss is not None
    assert np.isnan(dump.loss)
    assert all(bool(np.isfinite(dump[key]).all()) for key in dump if np.issubdtype(dump[key].dtype, np.floating))
    (finding,) = dump.findings()
    assert (finding.rule, finding.name) == ("nonfinite", "head")
    assert "index 4 (element [5, 0] of the indices) is beyond the 4 rows" in finding.why
    assert finding.source == dump.origins[0].source
    assert "keep the indices inside" in dump.origins[0].repair
    (unsearched,) = gs.capture(classified, variables, (X, LABELS.at[5].set(4)), origins=False).findings()
    assert (unsearched.rule, unsearched.name) == ("nonfinite", "head")
    assert not gs.capture(classified, variables, (X, jnp.clip(LABELS.at[5].set(4), 0, 3))).findings()


def modulated(variables: Any, batch: Any) -> jax.Array:
    x, condition = batch
    with jax.named_scope("modulation"):
        scale = jnp.tanh(condition @ variables["condition"]) @ variables["modulation"]
    with jax.named_scope("net"):
        h = jax.nn.silu((x @ variables["into"]) * (1 + scale))
    with jax.named_scope("out"):
        return ((h @ variables["out"] - x) ** 2).mean()


def test_a_kernel_of_zeros_that_waits_for_the_head_to_move_is_no_fault() -> None:
    variables = {
        "condition": kernel(1, 8, 8), "into": kernel(2, 8, 16),
        "modulation": filled(0.0, 8, 16), "out": filled(0.0, 16, 8),
    }  # fmt: skip
    batch = (X, X[::-1])
    assert not gs.capture(modulated, variables, batch).findings()
    gradient = jax.jit(jax.grad(modulated))
    moved = variables
    for _ in range(2):
        moved = jax.tree.map(lambda value, step: value - step, moved, gradient(moved, batch))
    assert float(jnp.abs(moved["modulation"]).max()) > 0  # as plain descent shows, it does not stay zero


def gated(variables: Any, batch: Any, *, mask: jax.Array | None = None) -> jax.Array:
    with jax.named_scope("gate"):
        gate = jax.nn.sigmoid(batch[0] @ variables["gate"] + variables["bias"])
    with jax.named_scope("first"):
        first = jnp.tanh(batch[0] @ variables["first"])
    with jax.named_scope("second"):
        second = jnp.tanh(batch[0] @ variables["second"])
    with jax.named_scope("masked"):
        second = second if mask is None else second * mask
    with jax.named_scope("mix"):
        mixed = gate * first + (1 - gate) * second
    with jax.named_scope("head"):
        logits = mixed @ variables["head"]
    return cross_entropy(logits, batch[1])


@pytest.mark.slow
@pytest.mark.parametrize("bias", [60.0, -200.0], ids=["open", "closed"])
def test_what_a_saturated_gate_closes_is_reported_with_it(bias: float) -> None:
    variables = {name: kernel(number, 8, 8) for number, name in enumerate(("gate", "first", "second"))}
    variables |= {"bias": filled(bias, 8), "head": kernel(9, 8, 4)}
    (finding,) = gs.capture(gated, variables, (X, LABELS)).findings()
    assert (finding.rule, finding.name) == ("saturated", "gate")


@pytest.mark.slow
def test_a_mask_of_zeros_elsewhere_is_reported_beside_a_saturated_gate() -> None:
    variables = {name: kernel(number, 8, 8) for number, name in enumerate(("gate", "first", "second"))}
    variables |= {"bias": filled(8.0, 8), "head": kernel(9, 8, 4)}
    found = gs.capture(lambda v, b: gated(v, b, mask=jnp.zeros(())), variables, (X, LABELS)).findings()
    assert [finding.rule for finding in found] == ["saturated", "zero-grad"]


@pytest.mark.slow
@pytest.mark.parametrize("kept", [0.0, 1.0])
def test_dead_units_of_a_layer_that_receives_zeros_alone_are_reported_as_that(kept: float) -> None:
    def loss(variables: Any, batch: Any) -> jax.Array:
        with jax.named_scope("first"):
            h = jnp.tanh(batch[0] @ variables["first"])
        h = h * kept
        with jax.named_scope("second"):
            h = jax.nn.relu(h @ variables["second"] + variables["bias"])
        with jax.named_scope("head"):
            return cross_entropy(h @ variables["head"], batch[1])

    variables = {"first": kernel(1, 8, 8), "second": kernel(2, 8, 8), "head": kernel(3, 8, 4)}
    variables["bias"] = filled(0.0 if kept == 0 else -10.0, 8)
    (finding,) = gs.capture(loss, variables, (X, LABELS)).findings()
    assert (finding.rule, finding.name) == ("dead", "second")
    assert ("as is all that its layer receives" in finding.why) == (kept == 0)


def test_a_value_near_the_largest_float16_is_reported_with_one_beyond_it() -> None:
    def loss(variables: Any, x: Any) -> Any:
        with jax.named_scope("into"):
            h = x @ variables["into"]
        with jax.named_scope("out"):
            y = h @ variables["out"]
        return y.astype(jnp.float32).mean()

    variables = {"into": jnp.full((8, 8), 5000, jnp.float16), "out": jnp.full((8, 4), 100, jnp.float16)}
    found = gs.capture(loss, variables, jnp.ones((16, 8), jnp.float16)).findings()
    assert [finding.rule for finding in found] == ["overflow"]


@pytest.mark.slow
def test_an_overflow_of_a_product_with_a_square_matrix_is_reported_as_that_and_its_repair_repairs_it() -> None:
    def loss(variables: Any, x: Any) -> Any:
        with jax.named_scope("square"):
            y = x.astype(variables.dtype) @ variables  # of the same shape as its first operand
        return y.astype(jnp.float32).mean()

    variables, x = jnp.full((8, 8), 40000, jnp.float16), jnp.ones((8, 8), jnp.float16).at[0, 0].set(0)
    dump = gs.capture(loss, variables, x)
    (origin,) = dump.origins
    assert origin.operands == ()
    assert "overflow of float16 (largest 65504)" in origin.why
    assert origin.repair == "scale the operands down, or compute this in float32"
    assert not gs.capture(loss, variables.astype(jnp.float32), x).origins
    assert not gs.capture(loss, variables / 1000, x).origins


def towers(variables: Any, batch: Any, *, read: bool) -> jax.Array:
    """Compares what one tower makes with what another makes, which is cut off; weights may read that."""
    with jax.named_scope("online"):
        prediction = batch[0] @ variables["online"]
    with jax.named_scope("target"):
        target = jax.lax.stop_gradient(batch[0] @ variables["target"])
    return jnp.square(prediction - (target @ variables["head"] if read else target)).mean()


@pytest.mark.slow
def test_parameters_of_a_target_are_in_the_notes_and_those_before_trained_weights_are_a_finding() -> None:
    variables = {"online": kernel(1, 8, 4), "target": kernel(2, 8, 4), "head": kernel(3, 4, 4)}
    cut = gs.capture(lambda v, b: towers(v, b, read=True), variables, (X,))
    assert [(finding.rule, finding.name) for finding in cut.findings()] == [("zero-grad", "target")]
    del variables["head"]
    dump = gs.capture(lambda v, b: towers(v, b, read=False), variables, (X,))
    assert not dump.findings()
    notes = dict(facts("", dump.manifest))
    why = "what is made of them counts as data behind a stop_gradient, as a target does"
    assert notes["frozen"] == f"target: {why}"


def test_a_target_may_be_beside_what_is_trained_at_any_depth() -> None:
    def loss(variables: Any, batch: Any) -> jax.Array:
        with jax.named_scope("head"):
            return towers(variables["agent"], batch, read=False) * variables["scale"]

    agent = {"online": kernel(1, 8, 4), "target": kernel(2, 8, 4)}
    dump = gs.capture(loss, {"agent": agent, "scale": jnp.ones(())}, (X,))
    assert not dump.findings()
    assert dict(facts("", dump.manifest))["frozen"].startswith("agent/target: what is made of them counts")


@pytest.mark.slow
@pytest.mark.parametrize(("scaled", "found"), [(False, []), (True, ["zero-grad"])])
def test_what_is_only_added_to_a_target_is_part_of_it(scaled: bool, found: list[str]) -> None:
    def loss(variables: Any, batch: Any) -> jax.Array:
        with jax.named_scope("student"):
            prediction = batch[0] @ variables["student"]
        with jax.named_scope("teacher"):
            target = batch[0] @ variables["teacher"]
            target = target * variables["shift"] if scaled else target - variables["shift"]
        shares = jax.lax.stop_gradient(jax.nn.softmax(target))
        return -(shares * jax.nn.log_softmax(prediction)).sum(-1).mean()

    variables = {"student": kernel(1, 8, 4), "teacher": kernel(2, 8, 4), "shift": drawn(3, 4)}
    dump = gs.capture(loss, variables, (X,))
    assert [each.rule for each in dump.findings()] == found


@pytest.mark.slow
def test_an_input_that_nothing_scales_is_named_though_a_normalisation_hides_it_from_the_answer() -> None:
    def loss(variables: Any, batch: Any) -> jax.Array:
        x, times = batch
        with jax.named_scope("clock"):
            hidden = times[:, None].astype(jnp.float32) @ variables["clock"]
        for name in ("first", "second"):
            with jax.named_scope(name):
                hidden = jax.nn.relu(hidden @ variables[name])
        with jax.named_scope("sum"):
            both = x + hidden
            both = (both - both.mean(-1, keepdims=True)) / jnp.sqrt(both.var(-1, keepdims=True) + 1e-6)
        with jax.named_scope("head"):
            return cross_entropy(both @ variables["head"], LABELS)

    shapes = {"clock": (1, 8), "first": (8, 8), "second": (8, 8), "head": (8, 4)}
    variables = {name: kernel(n, *shape, scale=1.4) for n, (name, shape) in enumerate(shapes.items())}
    times = jax.device_put(np.arange(16, dtype=np.int32) * 60)
    (found,) = gs.capture(loss, variables, (X, times)).findings()
    assert found.statement.startswith(
        "input/1 is up to 900, which no layer normalises: the signal is large in 2 layers behind it"
    )
    assert not gs.capture(loss, variables, (X, times // 600)).findings()


def test_an_element_that_makes_an_input_large_is_told_from_an_input_that_is_large() -> None:
    def loss(variables: Any, batch: Any) -> jax.Array:
        with jax.named_scope("first"):
            hidden = jax.nn.relu(batch[0] @ variables["first"])
        with jax.named_scope("head"):
            return ((hidden @ variables["head"]) ** 2).mean()

    def found(x: jax.Array) -> gs.Finding:
        (only,) = gs.capture(loss, {"first": kernel(1, 8, 8), "head": kernel(2, 8, 4)}, (x,)).findings()
        return only

    x = drawn(4, 64, 8)
    large, outlier = found(1000.0 * x), found(x.at[3, 2].set(4000.0))
    assert large.why.endswith("the signal is large throughout")
    assert large.repair.startswith("subtract the mean of the training data")
    assert "throughout, by few elements of up to 4000 (99% are within " in outlier.why
    assert outlier.repair.endswith(": 'show DUMP --tensor input/0' says where the largest is")


@pytest.mark.slow
def test_shares_of_two_signals_that_are_equal_at_first_are_no_fault() -> None:
    def loss(variables: Any, batch: Any) -> jax.Array:
        (x,) = batch
        with jax.named_scope("block"):
            shares = variables["shares"]
            x = (x * shares[0] + jnp.roll(x, 1, axis=0) * shares[1]) @ variables["kernel"]
        with jax.named_scope("head"):
            return cross_entropy(jax.nn.relu(x) @ variables["head"], LABELS)

    variables = {"shares": filled(0.5, 2, 8), "kernel": kernel(1, 8, 8, scale=1.4), "head": kernel(2, 8, 4)}
    assert not gs.capture(loss, variables, (X,)).findings()
    variables["kernel"] = filled(0.5, 8, 8)
    assert [(each.rule, each.name) for each in gs.capture(loss, variables, (X,)).findings()] == [("init", "kernel")]


@pytest.mark.slow
def test_kernels_that_an_inner_derivative_uses_backwards_and_the_constant_it_loses_are_no_finding() -> None:
    def energy(variables: Any, x: Any) -> jax.Array:
        with jax.named_scope("hidden"):
            x = jnp.tanh(x @ variables["hidden"])
        with jax.named_scope("head"):
            energies = x @ variables["head"]["kernel"] + variables["head"]["bias"][None]
        return energies.sum()

    def loss(variables: Any, batch: Any) -> jax.Array:
        return jnp.square(jax.grad(energy, argnums=1)(variables, batch[0]) - 1).mean()

    variables = {"hidden": kernel(1, 8, 256), "head": {"kernel": kernel(2, 256, 1), "bias": jnp.zeros(1)}}
    dump = gs.capture(loss, variables, (X,))
    assert "head#2" in {layer.path for layer in dump.layers}
    assert not dump.findings()


@pytest.mark.slow
def test_a_loss_whose_margins_are_kept_says_so_below_the_verdict() -> None:
    def loss(variables: Any, batch: Any) -> jax.Array:
        with jax.named_scope("embed"):
            embedded = batch[0] @ variables["embed"]
        return jax.nn.relu(jnp.square(embedded).sum(-1) - 1e4).mean()

    dump = gs.capture(loss, {"embed": kernel(1, 8, 4)}, (X,))
    assert (dump.loss, dump.findings()) == (0, ())
    kept = "embed: every margin of the loss is kept in this batch"
    assert dict(facts("", dump.manifest))["satisfied"] == kept
    broken = gs.capture(loss, {"embed": 1e3 * kernel(1, 8, 4)}, (X,))
    assert "satisfied" not in dict(facts("", broken.manifest))
