"""Functions called inside a loss: `jit`, `checkpoint`, custom rules, `vmap`, gradients of its own, effects."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name
from jax.experimental.pallas import pallas_call
from jax.sharding import NamedSharding, PartitionSpec

import gradscope as gs
from gradscope.instrument.observing_program import observing_program
from tests.oracle.engine import Probe, assert_close, bits, check, check_gradients, expected, layer, observe, unprobed
from tests.support.data import evenly

WEIGHTS = {"w": evenly(-1.0, 1.0, 3, 3), "b": evenly(0.0, 0.5, 3)}
INPUTS = evenly(-1.0, 2.0, 4, 3)


def dense(weights: dict[str, Any], x: Any) -> Any:
    return jnp.tanh(x @ weights["w"] + weights["b"][None])


# --- jit ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_jitted_function_is_looked_into() -> None:
    def loss(weights: Any, x: Any, probe: Probe = unprobed) -> Any:
        @jax.jit
        def network(x: Any) -> Any:
            x = layer("first", dense, weights, x, probe=probe)
            return layer("second", dense, weights, x, probe=probe)

        return network(x).sum()

    check(loss, WEIGHTS, INPUTS)


def test_one_jitted_function_called_under_two_scopes_is_two_layers() -> None:
    jitted = jax.jit(lambda weights, x: layer("inner", dense, weights, x))

    def loss(weights: Any, x: Any) -> Any:
        return layer("two", jitted, weights, layer("one", jitted, weights, x)).sum()

    def twin(weights: Any, x: Any, probe: Probe) -> Any:
        one = probe("one/inner", probe("one", dense(weights, x)))
        return probe("two/inner", probe("two", dense(weights, one))).sum()

    check(loss, WEIGHTS, INPUTS, twin=twin)


def test_one_jitted_function_called_twice_in_a_row_is_two_calls_of_its_layers() -> None:
    jitted = jax.jit(lambda weights, x: layer("inner", dense, weights, x))

    def loss(weights: Any, x: Any) -> Any:
        return jitted(weights, jitted(weights, x)).sum()

    def twin(weights: Any, x: Any, probe: Probe) -> Any:
        return probe("inner#2", dense(weights, probe("inner", dense(weights, x)))).sum()

    check(loss, WEIGHTS, INPUTS, twin=twin)


def test_jits_nest() -> None:
    def loss(weights: Any, x: Any, probe: Probe = unprobed) -> Any:
        @jax.jit
        def outer(x: Any) -> Any:
            inner = jax.jit(lambda x: layer("inner", dense, weights, x, probe=probe, at="outer/inner"))
            return inner(x) * 2

        return layer("outer", outer, x, probe=probe).sum()

    check(loss, WEIGHTS, INPUTS)


@pytest.mark.slow
def test_a_jitted_function_that_hands_back_its_operand() -> None:
    def loss(weights: Any, x: Any, probe: Probe = unprobed) -> Any:
        made = layer("made", dense, weights, x, probe=probe)
        handed = jax.jit(lambda x, y: (x, y * 2, 1.0))(made, weights["b"])
        return (handed[0] * handed[1][None] * handed[2]).sum()

    check(loss, WEIGHTS, INPUTS)


def test_shardings_of_a_jit_stay() -> None:
    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    split = NamedSharding(mesh, PartitionSpec("data"))
    replicated = NamedSharding(mesh, PartitionSpec())
    jitted = jax.jit(dense, in_shardings=(replicated, split), out_shardings=split)

    def loss(weights: Any, x: Any) -> Any:
        return layer("split", jitted, weights, x).sum()

    def twin(weights: Any, x: Any, probe: Probe) -> Any:
        return probe("split", dense(weights, x)).sum()

    observation = check(loss, WEIGHTS, INPUTS, twin=twin)
    assert observation.seen["split"].activation.sharding.is_equivalent_to(split, 2)
    program, _ = observing_program(observation.trace, observation.plan)
    observing = str(jax.make_jaxpr(program)(jax.tree_util.tree_leaves((WEIGHTS, INPUTS))))
    forward_and_backward = 2 * len([*WEIGHTS, "x", "split"])
    assert observing.count("= sharding_constraint") == forward_and_backward


def test_donated_operands_of_an_inner_jit_are_kept() -> None:
    jitted = jax.jit(lambda weights, x: layer("inner", dense, weights, x), donate_argnums=1)

    def loss(weights: Any, x: Any) -> Any:
        doubled = x * 2
        return jitted(weights, doubled).sum()

    def twin(weights: Any, x: Any, probe: Probe) -> Any:
        return probe("inner", dense(weights, x * 2)).sum()

    check(loss, WEIGHTS, INPUTS, twin=twin)


# --- checkpoint --------------------------------------------------------------------------------------------------

POLICIES = {
    "none": None,
    "everything": jax.checkpoint_policies.everything_saveable,
    "nothing": jax.checkpoint_policies.nothing_saveable,
    "dots": jax.checkpoint_policies.dots_saveable,
    "by name": jax.checkpoint_policies.save_only_these_names("middle"),
    "by other name": jax.checkpoint_policies.save_any_names_but_these("middle"),
}


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES.keys())
def test_a_checkpointed_function_is_looked_into(policy: Any) -> None:
    def loss(weights: Any, x: Any, probe: Probe = unprobed) -> Any:
        def block(weights: Any, x: Any) -> Any:
            x = checkpoint_name(layer("first", dense, weights, x, probe=probe), "middle")
            return layer("second", dense, weights, x, probe=probe)

        return jax.checkpoint(block, policy=policy)(weights, x).sum()

    def twin(weights: Any, x: Any, probe: Probe) -> Any:
        first = probe("first", dense(weights, x))
        return probe("second", dense(weights, first)).sum()

    check(loss, WEIGHTS, INPUTS, twin=twin)


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES.keys())
def test_a_checkpoint_recomputes_what_its_policy_says(policy: Any) -> None:
    def loss(weights: Any, x: Any) -> Any:
        block = lambda weights, x: checkpoint_name(layer("block", dense, weights, jnp.sin(x)), "middle") ** 2  # noqa: E731
        return jax.checkpoint(block, policy=policy)(weights, x).sum()

    plain = str(jax.make_jaxpr(jax.grad(loss, argnums=(0, 1)))(WEIGHTS, INPUTS))
    observation = observe(loss, WEIGHTS, INPUTS)
    program, _ = observing_program(observation.trace, observation.plan)
    observing = str(jax.make_jaxpr(program)(jax.tree_util.tree_leaves((WEIGHTS, INPUTS))))
    for primitive in ("tanh", "sin", "dot_general"):
        assert observing.count(f"= {primitive}") == plain.count(f"= {primitive}"), primitive


# --- custom rules ------------------------------------------------------------------------------------------------


@jax.custom_vjp
def doubting(x: Any) -> Any:
    """Sine with a backward rule that is wrong on purpose."""
    with jax.named_scope("within"):
        return jnp.sin(x)


doubting.defvjp(lambda x: (doubting(x), x), lambda x, cotangent: (cotangent * 7 + x,))


@partial(jax.custom_vjp, nondiff_argnums=(0, 2))
def scaled(factor: float, x: Any, function: Any) -> Any:
    return function(x) * factor


scaled.defvjp(
    lambda factor, x, function: (scaled(factor, x, function), x),
    lambda factor, function, x, cotangent: (cotangent * 3 * factor * function(x),),
)


@jax.custom_jvp
def skewed(x: Any) -> Any:
    with jax.named_scope("within"):
        return jnp.cos(x)


skewed.defjvp(lambda primals, tangents: (skewed(*primals), tangents[0] * 5 * primals[0]))


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def applied(function: Any, x: Any) -> Any:
    return function(x)


applied.defjvp(lambda function, primals, tangents: (function(*primals), tangents[0] * 2 * primals[0]))

CUSTOM_RULES = {
    "custom_vjp": doubting,
    "custom_vjp with arguments not differentiated": lambda x: scaled(2.0, x, jnp.sin),
    "custom_jvp": skewed,
    "custom_jvp with arguments not differentiated": lambda x: applied(jnp.sin, x),
    "custom_jvp under jit": jax.jit(skewed),
    "custom_vjp under jit": jax.jit(doubting),
    "custom_vjp under vmap": jax.vmap(doubting),
    "custom_jvp under vmap": jax.vmap(skewed),
    "custom_vjp under checkpoint": jax.checkpoint(doubting),
    "closure": lambda x: jax.closure_convert(jnp.sin, x)[0](x),
}


@pytest.mark.slow
@pytest.mark.parametrize("function", CUSTOM_RULES.values(), ids=CUSTOM_RULES.keys())
def test_a_custom_rule_is_kept_right_or_wrong(function: Any) -> None:
    def loss(weights: Any, x: Any, probe: Probe = unprobed) -> Any:
        x = layer("before", dense, weights, x, probe=probe)
        x = layer("custom", function, x, probe=probe)
        return layer("after", dense, weights, x, probe=probe).sum()

    check(loss, WEIGHTS, INPUTS, exactly=False)


INSIDE = {"custom_vjp": (doubting, jnp.sin), "custom_jvp": (skewed, jnp.cos)}


@pytest.mark.slow
@pytest.mark.parametrize(("function", "computed"), INSIDE.values(), ids=INSIDE.keys())
def test_what_is_inside_a_custom_rule_is_observed_beside_it_and_has_no_gradient(function: Any, computed: Any) -> None:
    def loss(weights: Any, x: Any) -> Any:
        return layer("custom", function, dense(weights, x)).sum()

    inside = check_gradients(loss, WEIGHTS, INPUTS).seen["custom/within"]
    assert_close(inside.activation, computed(dense(WEIGHTS, INPUTS)))
    assert inside.gradient is None


@jax.custom_vjp
def settled(weights: Any, x: Any) -> Any:
    """A fixed point by a loop that ends when it has settled, with a derivative rule that runs another program."""
    step = lambda state: (state[0] + 1, layer("step", lambda y: jnp.cos(y * weights["b"].sum()), state[1]))  # noqa: E731
    return layer("solver", lambda: jax.lax.while_loop(lambda state: state[0] < 3, step, (0, x)))[1]


settled.defvjp(
    lambda weights, x: (jnp.tanh(x), weights),
    lambda weights, cotangent: ({"w": 3 * weights["w"], "b": weights["b"] * cotangent.sum()}, cotangent),
)


@pytest.mark.slow
@pytest.mark.parametrize("transformed", [settled, jax.checkpoint(settled), jax.vmap(settled, (None, 0))])
def test_a_loop_inside_a_custom_rule_shows_its_last_iteration_and_the_rule_makes_the_outputs(transformed: Any) -> None:
    def loss(weights: Any, x: Any) -> Any:
        return (layer("custom", transformed, weights, x) ** 2).sum()

    seen = check_gradients(loss, WEIGHTS, INPUTS).seen
    y = INPUTS
    for _ in range(3):
        y = jnp.cos(y * WEIGHTS["b"].sum())
    assert_close(seen["custom/solver[2]/step"].activation, y)
    assert seen["custom/solver[2]/step"].gradient is None
    # Where it is differentiated, what a function returns is what its rule makes.
    assert_close(seen["custom"].activation, jnp.tanh(INPUTS))


@pytest.mark.slow
def test_a_custom_rule_inside_a_scan_shows_every_iteration() -> None:
    def loss(weights: Any, x: Any) -> Any:
        def block(x: Any, _: None) -> Any:
            return layer("block", lambda x: doubting(dense(weights, x)), x), None

        return layer("blocks", lambda: jax.lax.scan(block, x, length=2))[0].sum()

    seen = check_gradients(loss, WEIGHTS, INPUTS).seen
    first = jnp.sin(dense(WEIGHTS, INPUTS))
    assert_close(seen["blocks[0]/block/within"].activation, first)
    assert_close(seen["blocks[1]/block/within"].activation, jnp.sin(dense(WEIGHTS, first)))


def test_a_function_with_side_effects_and_a_rule_runs_once() -> None:
    calls: list[Any] = []

    @jax.custom_jvp
    def noted(x: Any) -> Any:
        with jax.named_scope("within"):
            jax.debug.callback(lambda x: calls.append(float(x)), x.sum())
            return x * 2

    noted.defjvp(lambda primals, tangents: (noted(*primals), tangents[0] * 2))
    observation = observe(lambda weights, x: noted(dense(weights, x)).sum(), WEIGHTS, INPUTS)
    jax.effects_barrier()
    assert len(calls) == 1
    assert not any(name.endswith("within") for name in observation.seen)


NN = {function.__name__: function for function in (jax.nn.relu, jax.nn.softmax, jax.nn.logsumexp, jnp.sort)}


@pytest.mark.slow
@pytest.mark.parametrize("function", NN.values(), ids=NN.keys())
def test_functions_with_rules_of_their_own(function: Any) -> None:
    def loss(weights: Any, x: Any) -> Any:
        x = layer("dense", lambda w, x: jnp.tanh(x @ w) / 2, weights["w"], x[:3])
        out = layer("function", function, x)
        return layer("sum", lambda out: sum(leaf.sum() for leaf in jax.tree_util.tree_leaves(out)), out)

    def twin(weights: Any, x: Any, probe: Probe) -> Any:
        out = function(probe("dense", jnp.tanh(x[:3] @ weights["w"]) / 2))
        return probe("sum", sum(leaf.sum() for leaf in jax.tree_util.tree_leaves(out)))

    check(loss, WEIGHTS, INPUTS, twin=twin, exactly=False)


@pytest.mark.slow
def test_an_implicit_root() -> None:
    def loss(weights: Any, x: Any, probe: Probe = unprobed) -> Any:
        made = layer("dense", dense, weights, x, probe=probe)

        def root(of: Any) -> Any:
            def newton(function: Any, guess: Any) -> Any:
                return jax.lax.fori_loop(0, 8, lambda _, y: (y + of / y) / 2, guess)

            def tangent_solve(function: Any, y: Any) -> Any:
                return y / function(jnp.ones_like(y))

            return jax.lax.custom_root(lambda y: y * y - of, jnp.ones_like(of), newton, tangent_solve)

        return layer("root", root, 1 + made.sum() ** 2, probe=probe)

    check(loss, WEIGHTS, INPUTS)
    counts = gs.capture(loss, WEIGHTS, INPUTS, ops=True).ledger.counts()
    assert counts["opaque"] > 1, "the solver's operations are neither captured nor listed"


# --- transformations inside the loss ------------------------------------------------------------------------------


def test_scopes_inside_a_vmapped_function() -> None:
    def loss(weights: Any, x: Any) -> Any:
        def one(row: Any) -> Any:
            row = layer("first", lambda row: jnp.tanh(row @ weights["w"]), row)
            return layer("second", lambda row: jnp.sin(row + weights["b"]), row)

        return layer("batched", jax.vmap(one), x).sum()

    def twin(weights: Any, x: Any, probe: Probe) -> Any:
        first = probe("batched/first", jnp.tanh(x @ weights["w"]))
        return probe("batched", probe("batched/second", jnp.sin(first + weights["b"][None]))).sum()

    check(loss, WEIGHTS, INPUTS, twin=twin)


@pytest.mark.slow
def test_a_gradient_taken_inside_the_loss() -> None:
    """A gradient penalty: the inner backward pass is part of the outer forward pass."""

    def energy(x: Any, weights: Any) -> Any:
        x = layer("first", dense, weights, x)
        return layer("second", dense, weights, x).sum()

    def loss(weights: Any, x: Any, probe: Probe = unprobed) -> Any:
        penalty = jax.grad(energy)(x, weights)
        return layer("penalty", lambda g: (g * g).sum(), penalty, probe=probe)

    observation = check(loss, WEIGHTS, INPUTS, exactly=False)
    assert {"first", "second"} <= {name.split("#")[0].split(".")[0] for name in observation.seen}


@pytest.mark.parametrize("inner", [jax.jit, jax.checkpoint, jax.vmap], ids=["jit", "checkpoint", "vmap"])
def test_a_gradient_of_a_transformed_function_inside_the_loss(inner: Any) -> None:
    def loss(weights: Any, x: Any, probe: Probe = unprobed) -> Any:
        def energy(x: Any) -> Any:
            return inner(lambda row: layer("inner", lambda row: jnp.tanh(row @ weights["w"]), row))(x).sum()

        gradient = layer("gradient", jax.grad(energy), x, probe=probe)
        return (gradient**2).sum()

    check(loss, WEIGHTS, INPUTS, exactly=False)


@pytest.mark.slow
def test_a_jacobian_taken_forward_inside_the_loss() -> None:
    def loss(weights: Any, x: Any, probe: Probe = unprobed) -> Any:
        return (layer("jacobian", jax.jacfwd(lambda row: jnp.tanh(row @ weights["w"])), x[0], probe=probe) ** 2).sum()

    check(loss, WEIGHTS, INPUTS)


@pytest.mark.slow
def test_a_scan_differentiated_inside_the_loss() -> None:
    def loss(weights: Any, x: Any, probe: Probe = unprobed) -> Any:
        def energy(row: Any) -> Any:
            def body(carry: Any, _: None) -> Any:
                return layer("step", lambda carry: jnp.tanh(carry @ weights["w"]), carry), None

            return jax.lax.scan(body, row, None, length=3)[0].sum()

        return (layer("gradient", jax.grad(energy), x[0], probe=probe) ** 2).sum()

    check(loss, WEIGHTS, INPUTS, exactly=False)


# --- effects -----------------------------------------------------------------------------------------------------


def test_what_a_loss_prints_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    def loss(weights: Any, x: Any) -> Any:
        y = layer("dense", dense, weights, x)
        jax.debug.print("sum {}", y.sum() > 1e9)
        return y.sum()

    observe(loss, WEIGHTS, INPUTS)
    jax.effects_barrier()
    assert capsys.readouterr().out == "sum False\n"


def test_printing_in_order_inside_loops_and_branches(capsys: pytest.CaptureFixture[str]) -> None:
    def loss(weights: Any, x: Any) -> Any:
        def body(carry: Any, row: Any) -> Any:
            jax.debug.print("iteration {}", carry, ordered=True)
            branch = partial(jax.debug.print, "odd {}", carry, ordered=True)
            jax.lax.cond(carry % 2 == 1, branch, lambda: None)
            return carry + 1, layer("row", lambda row: row @ weights["w"], row)

        return jax.lax.scan(body, jnp.int32(0), x)[1].sum()

    observe(loss, WEIGHTS, INPUTS)
    jax.effects_barrier()
    assert capsys.readouterr().out.split("\n") == [
        "iteration 0",
        "iteration 1",
        "odd 1",
        "iteration 2",
        "iteration 3",
        "odd 3",
        "",
    ]


def test_a_host_callback_inside_a_layer() -> None:
    def loss(weights: Any, x: Any, probe: Probe = unprobed) -> Any:
        def hosted(x: Any) -> Any:
            shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
            return x * jax.pure_callback(np.sin, shape, jax.lax.stop_gradient(x), vmap_method="sequential")

        return layer("dense", dense, weights, layer("hosted", hosted, x, probe=probe), probe=probe).sum()

    check(loss, WEIGHTS, INPUTS)


# --- transformations around the observing program ----------------------------------------------------------------


@pytest.mark.slow
def test_a_program_may_be_mapped() -> None:
    def loss(weights: Any, x: Any, probe: Probe = unprobed) -> Any:
        x = layer("first", dense, weights, x, probe=probe)
        return layer("second", lambda x: jnp.where(x.sum() > 0, x, -x), x, probe=probe).sum()

    batches = jnp.stack([INPUTS, -INPUTS, INPUTS * 2])
    observation = observe(loss, WEIGHTS, INPUTS)
    program, reached = observing_program(observation.trace, observation.plan)
    weights = jax.tree_util.tree_leaves(WEIGHTS)
    mapped = jax.vmap(lambda x: program([*weights, x]))(batches)
    assert len(reached.sites) == 2
    for number, batch in enumerate(batches):
        plain_values = expected(loss, WEIGHTS, batch)
        for at, name in enumerate(["first", "second"]):
            assert_close(mapped.captured.values[at][number], plain_values[name].activation)
            assert_close(mapped.cotangents[at][number], plain_values[name].gradient)


@pytest.mark.slow
def test_a_program_may_be_differentiated_and_its_arguments_donated() -> None:
    def loss(weights: Any, x: Any) -> Any:
        return layer("dense", dense, weights, x).sum()

    observation = observe(loss, WEIGHTS, INPUTS)
    program, _ = observing_program(observation.trace, observation.plan)
    leaves, tree = jax.tree_util.tree_flatten((WEIGHTS, INPUTS))

    def steepness(gradients: Any) -> Any:
        return sum((gradient**2).sum() for gradient in jax.tree_util.tree_leaves(gradients))

    twice = jax.grad(lambda leaves: steepness(program(leaves).gradients))(leaves)
    plain = jax.grad(lambda leaves: steepness(jax.grad(loss, argnums=(0, 1))(*tree.unflatten(leaves))))(leaves)
    for found, expected_value in zip(twice, plain, strict=True):
        assert_close(found, expected_value)
    donated = jax.jit(program, donate_argnums=0)([jnp.copy(leaf) for leaf in leaves])
    assert_close(donated.loss, observation.loss)


def test_a_program_is_not_changed_by_running_it() -> None:
    def loss(weights: Any, x: Any) -> Any:
        return layer("dense", dense, weights, x).sum()

    first, second = observe(loss, WEIGHTS, INPUTS), observe(loss, WEIGHTS, INPUTS)
    leaves = zip(*map(jax.tree_util.tree_leaves, (first.observed, second.observed)), strict=True)
    assert all(bits(one) == bits(other) for one, other in leaves)


@pytest.mark.slow
def test_constants_closed_over() -> None:
    table = np.linspace(-1, 1, 300, dtype=np.float32).reshape(100, 3)

    def loss(weights: Any, x: Any, probe: Probe = unprobed) -> Any:
        embedded = layer("embed", lambda: jnp.asarray(table)[jnp.array([3, 5, 99])], probe=probe)
        inner = jax.jit(lambda x: x @ jnp.asarray(table[:3]))
        return layer("dense", dense, weights, inner(embedded), probe=probe).sum() + x.sum()

    check(loss, WEIGHTS, INPUTS)


def test_gradients_of_a_loss_checked_elsewhere_are_those_of_a_nested_program() -> None:
    """Everything at once: a checkpointed, jitted, vmapped block with a custom rule inside."""

    def loss(weights: Any, x: Any) -> Any:
        def row(row: Any) -> Any:
            return layer("rule", doubting, layer("mix", lambda row: jax.nn.relu(row @ weights["w"]), row))

        return jax.checkpoint(jax.jit(jax.vmap(row)))(x).sum()

    check_gradients(loss, WEIGHTS, INPUTS)


@jax.custom_vjp
def in_kernel(x: Any) -> Any:
    def kernel(read: Any, written: Any) -> None:
        written[...] = jnp.exp(read[...])

    return pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=True)(x)


in_kernel.defvjp(lambda x: (in_kernel(x), in_kernel(x)), lambda made, arriving: (made * arriving,))


@pytest.mark.slow
def test_a_kernel_of_pallas_has_the_gradient_of_its_rule() -> None:
    dump = gs.capture(lambda x: layer("kernel", in_kernel, x).sum(), INPUTS, ops=True)
    assert_close(dump["param_grad/value"], jnp.exp(INPUTS))
