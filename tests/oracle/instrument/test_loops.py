"""Loops inside a loss: a record per iteration of a scan, and of a `while` the last iteration."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.oracle.engine import Probe, assert_close, check, check_compiled, check_gradients, layer, observe
from tests.support.data import evenly
from tests.support.sampled import sampled

WEIGHTS = evenly(-1.0, 1.0, 4, 3, 3)
INPUTS = evenly(-1.0, 2.0, 2, 3)


def attend(weight: Any, x: Any) -> Any:
    return jnp.tanh(x @ weight)


def feed(x: Any) -> Any:
    return jnp.sin(x) + x


def scanned(weights: Any, x: Any, **options: Any) -> Any:
    """Four residual blocks of two layers under one scan; hands on the last activation and what each block made."""

    def block(carry: Any, weight: Any) -> Any:
        attended = layer("attn", attend, weight, carry)
        return carry + layer("mlp", feed, attended), attended

    return layer("blocks", lambda: jax.lax.scan(block, x, weights, **options))


def unrolled(weights: Any, x: Any, probe: Probe, *, reverse: bool = False) -> Any:
    """The same, one iteration after the other, each record under the name of its iteration."""
    made: dict[int, Any] = {}
    iterations = reversed(range(len(weights))) if reverse else range(len(weights))
    for iteration in iterations:
        made[iteration] = probe(
            f"blocks[{iteration}].0", probe(f"blocks[{iteration}]/attn", attend(weights[iteration], x))
        )
        x = probe(f"blocks[{iteration}].1", x + probe(f"blocks[{iteration}]/mlp", feed(made[iteration])))
    return probe("blocks.0", x), probe("blocks.1", jnp.stack([made[iteration] for iteration in range(len(weights))]))


@sampled("options", [{}, {"unroll": 2}, {"_split_transpose": True}], ids=str)
def test_a_scan_is_its_unrolled_twin_iteration_by_iteration(options: dict[str, Any]) -> None:
    def loss(weights: Any, x: Any) -> Any:
        last, made = scanned(weights, x, **options)
        return (last**2).sum() + made.sum()

    def twin(weights: Any, x: Any, probe: Probe) -> Any:
        last, made = unrolled(weights, x, probe)
        return (last**2).sum() + made.sum()

    check(loss, WEIGHTS, INPUTS, twin=twin)


@pytest.mark.slow
def test_a_reverse_scan_numbers_its_iterations_by_place_and_not_by_time() -> None:
    def loss(weights: Any, x: Any) -> Any:
        last, made = scanned(weights, x, reverse=True)
        return (last**2).sum() + made.sum()

    def twin(weights: Any, x: Any, probe: Probe) -> Any:
        last, made = unrolled(weights, x, probe, reverse=True)
        return (last**2).sum() + made.sum()

    check(loss, WEIGHTS, INPUTS, twin=twin)


@pytest.mark.slow
@sampled("policy", [None, jax.checkpoint_policies.dots_saveable], ids=["no-policy", "dots"])
@pytest.mark.parametrize("place", ["inside", "outside"])
def test_a_scan_of_checkpointed_blocks(policy: Any, place: str) -> None:
    def run(weights: Any, x: Any) -> Any:
        def block(carry: Any, weight: Any) -> Any:
            return carry + layer("mlp", feed, layer("attn", attend, weight, carry)), None

        body = jax.checkpoint(block, prevent_cse=False, policy=policy) if place == "inside" else block
        return layer("blocks", lambda: jax.lax.scan(body, x, weights)[0])

    def loss(weights: Any, x: Any) -> Any:
        return (run if place == "inside" else jax.checkpoint(run, policy=policy))(weights, x).sum()

    def twin(weights: Any, x: Any, probe: Probe) -> Any:
        for iteration in range(4):
            attended = probe(f"blocks[{iteration}]/attn", attend(weights[iteration], x))
            x = probe(f"blocks[{iteration}]", x + probe(f"blocks[{iteration}]/mlp", feed(attended)))
        return probe("blocks", x).sum()

    check(loss, WEIGHTS, INPUTS, twin=twin)


@pytest.mark.slow
def test_scans_nest() -> None:
    def loss(weights: Any, x: Any) -> Any:
        def inner(carry: Any, factor: Any) -> Any:
            return layer("step", lambda carry: jnp.sin(carry * factor), carry), None

        def outer(carry: Any, weight: Any) -> Any:
            carry = layer("attn", attend, weight, carry)
            return layer("inner", lambda: jax.lax.scan(inner, carry, jnp.arange(1.0, 3.0))[0]), None

        return layer("outer", lambda: jax.lax.scan(outer, x, weights)[0]).sum()

    def twin(weights: Any, x: Any, probe: Probe) -> Any:
        for iteration in range(2):
            here = f"outer[{iteration}]"
            x = probe(f"{here}/attn", attend(weights[iteration], x))
            for step in range(2):
                x = probe(f"{here}/inner[{step}]", probe(f"{here}/inner[{step}]/step", jnp.sin(x * (step + 1.0))))
            x = probe(here, probe(f"{here}/inner", x))
        return probe("outer", x).sum()

    check(loss, WEIGHTS[:2], INPUTS, twin=twin)


@pytest.mark.slow
def test_nested_scans_without_a_scope_between_add_up_their_iterations() -> None:
    def loss(weights: Any, x: Any) -> Any:
        def inner(carry: Any, factor: Any) -> Any:
            return layer("step", lambda carry: jnp.sin(carry * factor), carry), None

        def outer(carry: Any, weight: Any) -> Any:
            return jax.lax.scan(inner, carry, weight[0])[0], None

        return jax.lax.scan(outer, x, weights)[0].sum()

    def twin(weights: Any, x: Any, probe: Probe) -> Any:
        for iteration in range(4):
            for step in range(3):
                x = probe(f"step[{iteration}][{step}]", jnp.sin(x * weights[iteration, 0, step]))
        return x.sum()

    check(loss, WEIGHTS, INPUTS, twin=twin)


def test_a_scan_of_no_iterations_has_no_records() -> None:
    def loss(weights: Any, x: Any) -> Any:
        return scanned(weights[:0], x)[0].sum()

    assert set(observe(loss, WEIGHTS, INPUTS).seen) == {"blocks"}


@pytest.mark.slow
def test_a_scan_of_one_iteration_is_numbered_all_the_same() -> None:
    def loss(weights: Any, x: Any) -> Any:
        return (scanned(weights[:1], x)[0] ** 2).sum()

    def twin(weights: Any, x: Any, probe: Probe) -> Any:
        attended = probe("blocks[0]/attn", attend(weights[0], x))
        return (probe("blocks", probe("blocks[0]", x + probe("blocks[0]/mlp", feed(attended)))) ** 2).sum()

    check(loss, WEIGHTS, INPUTS, twin=twin)


@pytest.mark.slow
def test_weights_that_a_scan_reads_whole_are_constants_of_it() -> None:
    def loss(weights: Any, x: Any) -> Any:
        def block(carry: Any, _: None) -> Any:
            return layer("attn", attend, weights[0], carry), None

        return (jax.lax.scan(block, x, None, length=3)[0] ** 2).sum()

    def twin(weights: Any, x: Any, probe: Probe) -> Any:
        for iteration in range(3):
            x = probe(f"attn[{iteration}]", attend(weights[0], x))
        return (x**2).sum()

    check(loss, WEIGHTS, INPUTS, twin=twin)


@pytest.mark.slow
def test_a_map_and_a_vectorised_map() -> None:
    def loss(weights: Any, x: Any) -> Any:
        mapped = jax.lax.map(lambda row: layer("row", attend, weights[0], row), x)
        batched = jax.lax.map(lambda row: layer("batch", attend, weights[1], row), mapped, batch_size=2)
        return batched.sum()

    def twin(weights: Any, x: Any, probe: Probe) -> Any:
        rows = jnp.stack([probe(f"row[{iteration}]", attend(weights[0], x[iteration])) for iteration in range(2)])
        return attend(weights[1], rows).sum()

    check(loss, WEIGHTS, INPUTS, twin=twin, exactly=False)


@pytest.mark.slow
def test_an_associative_scan_and_cumulative_operations() -> None:
    def loss(weights: Any, x: Any, probe: Probe = lambda _, value: value) -> Any:
        x = layer("associative", partial(jax.lax.associative_scan, jnp.multiply), x, probe=probe)
        return (layer("cumulative", partial(jax.lax.cumsum, axis=1), x, probe=probe) * weights[0, :2]).sum()

    check(loss, WEIGHTS, INPUTS, stepwise=False)


@pytest.mark.slow
def test_gradients_accumulate_over_the_iterations_that_read_one_value() -> None:
    def loss(weights: Any, x: Any) -> Any:
        shared = layer("shared", attend, weights[0], x)

        def block(carry: Any, weight: Any) -> Any:
            return layer("use", lambda carry: carry @ weight + shared, carry), None

        return jax.lax.scan(block, x, weights)[0].sum()

    def twin(weights: Any, x: Any, probe: Probe) -> Any:
        shared = probe("shared", attend(weights[0], x))
        for iteration in range(4):
            x = probe(f"use[{iteration}]", x @ weights[iteration] + shared)
        return x.sum()

    check(loss, WEIGHTS, INPUTS, twin=twin)


# --- while -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_loop_of_known_length_is_a_scan() -> None:
    def loss(weights: Any, x: Any) -> Any:
        def body(iteration: Any, carry: Any) -> Any:
            return layer("step", attend, weights[0], carry)

        return (jax.lax.fori_loop(0, 3, body, x) ** 2).sum()

    def twin(weights: Any, x: Any, probe: Probe) -> Any:
        for iteration in range(3):
            x = probe(f"step[{iteration}]", attend(weights[0], x))
        return (x**2).sum()

    check(loss, WEIGHTS, INPUTS, twin=twin)


def counted(iterations: Any, x: Any, weight: Any) -> Any:
    """A loop whose number of iterations only running it tells."""
    body = lambda _, carry: layer("step", attend, weight, carry)  # noqa: E731
    return layer("loop", lambda: jax.lax.fori_loop(0, iterations, body, x))


def looping(weights: Any, batch: Any) -> Any:
    x, iterations = batch
    made = counted(iterations, jax.lax.stop_gradient(x), jax.lax.stop_gradient(weights[0]))
    return (layer("dense", attend, weights[1], x) * made).sum()


@pytest.mark.slow
@pytest.mark.parametrize("iterations", [1, 2, 5])
def test_a_while_loop_shows_its_last_iteration(iterations: int) -> None:
    observation = check_gradients(looping, WEIGHTS, (INPUTS, jnp.int32(iterations)))
    expected_value = INPUTS
    for _ in range(iterations):
        expected_value = attend(WEIGHTS[0], expected_value)
    step = observation.seen[f"loop[{iterations - 1}]/step"]
    assert_close(step.activation, expected_value)
    assert step.gradient is None
    assert_close(observation.seen["loop"].activation, expected_value)
    assert_close(observation.seen["loop"].gradient, attend(WEIGHTS[1], INPUTS))


def test_a_while_loop_of_no_iterations_has_nothing_to_show() -> None:
    observation = check_gradients(looping, WEIGHTS, (INPUTS, jnp.int32(0)))
    assert observation.seen["loop[0]/step"].activation is None
    assert_close(observation.seen["loop"].activation, INPUTS)


@pytest.mark.slow
def test_iterations_are_counted_for_every_while_loop_around_a_value() -> None:
    def loss(weights: Any, batch: Any) -> Any:
        x, iterations = batch

        def outer(iteration: Any, carry: Any) -> Any:
            return layer("outer", counted, iteration + 1, carry, jax.lax.stop_gradient(weights[0]))

        made = jax.lax.fori_loop(0, iterations, outer, jax.lax.stop_gradient(x))
        return (attend(weights[1], x) * made).sum()

    observation = check_gradients(loss, WEIGHTS, (INPUTS, jnp.int32(3)))
    expected_value = INPUTS
    for _ in range(6):
        expected_value = attend(WEIGHTS[0], expected_value)
    assert_close(observation.seen["outer[2]/loop[2]/step"].activation, expected_value)


@pytest.mark.slow
def test_a_while_loop_inside_a_scan_counts_its_iterations_in_each() -> None:
    def loss(weights: Any, batch: Any) -> Any:
        x, iterations = batch

        def block(carry: Any, scanned: Any) -> Any:
            weight, iteration = scanned
            made = counted(iteration, jax.lax.stop_gradient(carry), jax.lax.stop_gradient(weight))
            return layer("dense", attend, weight, carry) * made, None

        return layer("blocks", lambda: jax.lax.scan(block, x, (weights, iterations))[0]).sum()

    iterations = jnp.array([2, 0, 1, 3], jnp.int32)
    observation = check_gradients(loss, WEIGHTS, (INPUTS, iterations))
    x = INPUTS
    for block, number in enumerate(iterations.tolist()):
        made = x
        for _ in range(number):
            made = attend(WEIGHTS[block], made)
        step = observation.seen[f"blocks[{block}]/loop[{max(number - 1, 0)}]/step"]
        if number:
            assert_close(step.activation, made)
        else:
            assert step.activation is None
        x = attend(WEIGHTS[block], x) * made


@pytest.mark.slow
def test_a_scan_inside_a_while_loop_shows_every_iteration_of_the_last() -> None:
    def loss(weights: Any, batch: Any) -> Any:
        x, iterations = batch

        def body(_: Any, carry: Any) -> Any:
            block = lambda carry, weight: (layer("attn", attend, weight, carry), None)  # noqa: E731
            return layer("inner", lambda: jax.lax.scan(block, carry, jax.lax.stop_gradient(weights))[0])

        made = layer("outer", lambda: jax.lax.fori_loop(0, iterations, body, jax.lax.stop_gradient(x)))
        return (attend(weights[1], x) * made).sum()

    observation = check_gradients(loss, WEIGHTS, (INPUTS, jnp.int32(2)))
    x = INPUTS
    for iteration in range(8):
        x = attend(WEIGHTS[iteration % 4], x)
        if iteration >= 4:
            assert_close(observation.seen[f"outer[1]/inner[{iteration - 4}]/attn"].activation, x)


@pytest.mark.slow
def test_a_while_loop_whose_rows_end_at_different_iterations_shows_the_last_of_all() -> None:
    inputs, limits = evenly(0.1, 2.0, 3, 3), jnp.array([9.0, 40.0, -1.0])

    def grown(row: Any, limit: Any) -> Any:
        body = lambda state: (state[0] + 1, layer("grow", lambda row: row * 2 + 1, state[1]))  # noqa: E731
        return jax.lax.while_loop(lambda state: state[1].sum() < limit, body, (0, row))

    def loss(weights: Any, x: Any) -> Any:
        iterations, made = layer("loop", lambda: jax.vmap(grown)(jax.lax.stop_gradient(x), limits))
        return (attend(weights[1], x) * made * iterations[:, None]).sum()

    rows, last = [], []
    for row, limit in zip(inputs, limits, strict=True):
        iteration, made = grown(row, limit)
        rows.append(made)
        last.append(int(iteration))
    assert len(set(last)) > 2  # they do end at different iterations
    seen = check_gradients(loss, WEIGHTS, inputs).seen
    assert_close(seen["loop.1"].activation, jnp.stack(rows))
    # A row that has ended is computed on, from where it ended, and what it makes is dropped.
    ended = np.array(last) < max(last)
    shown = seen[f"loop[{max(last) - 1}]/grow"]
    assert_close(shown.activation, jnp.where(ended[:, None], jnp.stack(rows) * 2 + 1, jnp.stack(rows)))
    assert shown.gradient is None


@pytest.mark.slow
def test_a_while_loop_with_a_condition_on_what_it_closes_over() -> None:
    def loss(weights: Any, x: Any) -> Any:
        limit = jax.lax.stop_gradient(jnp.abs(x).sum())

        def go_on(state: Any) -> Any:
            return jnp.logical_and(state[1].sum() < limit, state[0] < 10)

        def body(state: Any) -> Any:
            return state[0] + 1, layer("grow", lambda x: x * 2 + 1, state[1])

        iterations, made = jax.lax.while_loop(go_on, body, (0, jnp.zeros(3)))
        return (attend(weights[0], x) * made[None]).sum() * iterations

    observation = check_gradients(loss, WEIGHTS, INPUTS)
    np.testing.assert_array_equal(observation.seen["grow[1]"].activation, [3.0, 3.0, 3.0])


@pytest.mark.slow
def test_a_while_loop_that_forward_mode_passes_through_and_reverse_mode_never_needs() -> None:
    def loss(weights: Any, x: Any) -> Any:
        made = counted(jnp.int32(2), x, weights[0])  # differentiable operands, and the result is cut off
        return (attend(weights[1], x) * jax.lax.stop_gradient(made)).sum()

    observation = check_gradients(loss, WEIGHTS, INPUTS)
    assert observation.seen["loop[1]/step"].gradient is None


@pytest.mark.slow
def test_an_input_that_a_while_loop_prepares_has_no_gradient_and_disturbs_none() -> None:
    def loss(weights: Any, batch: Any) -> Any:
        x, iterations = batch
        prepared = layer(
            "prepare", counted, iterations, layer("scale", lambda: x * 2), jax.lax.stop_gradient(weights[0])
        )
        return (layer("dense", attend, weights[1], prepared) ** 2).sum()

    observation = check_gradients(loss, WEIGHTS, (INPUTS, jnp.int32(2)))
    assert observation.inputs == {}
    assert observation.seen["prepare/scale" if "prepare/scale" in observation.seen else "scale"].gradient is None
    assert observation.seen["dense"].gradient is not None


@pytest.mark.slow
def test_an_input_that_the_host_prepares_has_no_gradient_and_disturbs_none() -> None:
    def loss(weights: Any, x: Any) -> Any:
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        hosted = layer("host", lambda: jax.pure_callback(np.sin, shape, layer("scale", lambda: x * 2)))
        return (layer("dense", attend, weights[1], hosted) ** 2).sum()

    observation = check_gradients(loss, WEIGHTS, INPUTS)
    assert observation.inputs == {}
    assert observation.seen["host/scale"].gradient is None
    assert_close(observation.seen["host"].activation, jnp.sin(INPUTS * 2))


@pytest.mark.slow
def test_a_while_loop_carries_keys_and_flags() -> None:
    def loss(weights: Any, batch: Any) -> Any:
        x, key, iterations = batch

        def body(_: Any, state: Any) -> Any:
            key, flag, total = state
            key, use = layer("split", jax.random.split, key)
            drawn = layer("draw", lambda: jax.random.normal(use, (3,)))
            return key, layer("flip", jnp.logical_not, flag), total + drawn

        _, flag, total = jax.lax.fori_loop(0, iterations, body, (key, jnp.bool_(False), jnp.zeros(3)))
        return (attend(weights[0], x) * jnp.where(flag, total, -total)[None]).sum()

    key = jax.random.key(3)
    observation = check_compiled(loss, WEIGHTS, (INPUTS, key, jnp.int32(3)))
    _, use = jax.random.split(jax.random.split(jax.random.split(key)[0])[0])
    assert_close(observation.seen["draw[2]"].activation, jax.random.normal(use, (3,)))
    assert observation.seen["flip[2]"].activation.dtype == bool


@pytest.mark.slow
def test_loops_inside_a_vmapped_function() -> None:
    def loss(weights: Any, batch: Any) -> Any:
        x, iterations = batch

        def one(row: Any, iterations: Any) -> Any:
            made = counted(iterations, jax.lax.stop_gradient(row), jax.lax.stop_gradient(weights[0]))
            block = lambda carry, weight: (layer("attn", attend, weight, carry), None)  # noqa: E731
            return layer("blocks", lambda: jax.lax.scan(block, row, weights)[0]) * made

        return jax.vmap(one)(x, iterations).sum()

    observation = check_gradients(loss, WEIGHTS, (INPUTS, jnp.array([1, 3], jnp.int32)))
    x = INPUTS
    for iteration in range(4):
        x = attend(WEIGHTS[iteration], x)
        assert_close(observation.seen[f"blocks[{iteration}]/attn"].activation, x)


def test_what_a_layer_reads_inside_a_loop_is_observed_with_it() -> None:
    def loss(weights: Any, x: Any) -> Any:
        return scanned(weights, x)[0].sum()

    observation = observe(loss, WEIGHTS, INPUTS)
    read = {value for found in observation.trace.layers for value in found.inputs}
    assert read <= {site.value for site in observation.plan.sites} | {((), -1, 1)}
