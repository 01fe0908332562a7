"""Branches inside a loss: what the branch taken made is recorded, what the others would have made is not."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradscope.instrument.observing_program import observing_program
from tests.oracle.engine import Probe, assert_close, check, check_gradients, layer, observe, unprobed
from tests.support.data import evenly

WEIGHTS = evenly(-1.0, 1.0, 3, 3)
INPUTS = evenly(-1.0, 2.0, 2, 3)


def dense(weight: Any, x: Any) -> Any:
    return jnp.tanh(x @ weight)


def curved(weight: Any, x: Any) -> Any:
    return layer("curved", dense, weight, x)


def straight(weight: Any, x: Any) -> Any:
    return layer("straight", jnp.matmul, x, weight)


def zero(weight: Any, x: Any) -> Any:
    return layer("zero", jnp.zeros_like, x)


@pytest.mark.slow
@pytest.mark.parametrize("taken", [True, False])
def test_of_two_branches_the_one_taken_is_recorded(taken: bool) -> None:
    def loss(weight: Any, batch: Any) -> Any:
        x, flag = batch
        return (layer("choice", jax.lax.cond, flag, curved, straight, weight, x) ** 2).sum()

    def twin(weight: Any, batch: Any, probe: Probe) -> Any:
        x, _ = batch
        made = probe("choice/curved", dense(weight, x)) if taken else probe("choice/straight", x @ weight)
        return (probe("choice", made) ** 2).sum()

    observation = check(loss, WEIGHTS, (INPUTS, jnp.bool_(taken)), twin=twin, exactly=False)
    other = observation.seen["choice/straight" if taken else "choice/curved"]
    assert other.activation is None
    assert other.gradient is None


@pytest.mark.slow
@pytest.mark.parametrize("index", [-5, 0, 1, 2, 7])
def test_of_several_branches_the_one_taken_is_recorded(index: int) -> None:
    """An index beyond the branches takes the nearest, as `switch` has it."""

    def loss(weight: Any, batch: Any) -> Any:
        x, index = batch
        return (jax.lax.switch(index, [curved, straight, zero], weight, x) ** 2).sum()

    observation = check_gradients(loss, WEIGHTS, (INPUTS, jnp.int32(index)))
    names = ["curved", "straight"]
    taken = names[index : index + 1] if index >= 0 else ["curved"]
    assert [name for name in names if observation.seen[name].activation is not None] == taken


@pytest.mark.slow
def test_a_layer_in_both_branches_is_two_layers() -> None:
    def loss(weight: Any, batch: Any) -> Any:
        x, flag = batch
        positive = lambda x: layer("same", dense, weight, x)  # noqa: E731
        negative = lambda x: layer("same", dense, -weight, x)  # noqa: E731
        return jax.lax.cond(flag, positive, negative, x).sum()

    for flag in (True, False):
        observation = check_gradients(loss, WEIGHTS, (INPUTS, jnp.bool_(flag)))
        run, not_run = ("same#2", "same") if flag else ("same", "same#2")  # the branch for False comes first
        assert_close(observation.seen[run].activation, dense(WEIGHTS if flag else -WEIGHTS, INPUTS))
        assert observation.seen[not_run].activation is None


@pytest.mark.slow
@pytest.mark.parametrize(("outer", "inner"), [(True, True), (True, False), (False, True)])
def test_branches_nest(outer: bool, inner: bool) -> None:
    def loss(weight: Any, batch: Any) -> Any:
        x, outer, inner = batch

        def nested(weight: Any, x: Any) -> Any:
            return layer("inner", jax.lax.cond, inner, curved, straight, weight, x)

        return layer("outer", jax.lax.cond, outer, nested, zero, weight, x).sum() + (weight**2).sum()

    def twin(weight: Any, batch: Any, probe: Probe) -> Any:
        x, _, _ = batch
        if not outer:
            return probe("outer", probe("outer/zero", jnp.zeros_like(x))).sum() + (weight**2).sum()
        made = probe("curved", dense(weight, x)) if inner else probe("straight", x @ weight)
        return probe("outer", probe("outer/inner", made)).sum() + (weight**2).sum()

    def named(name: str) -> str:
        return f"outer/inner/{name}" if name in ("curved", "straight") else name

    def probed(weight: Any, batch: Any, probe: Probe) -> Any:
        return twin(weight, batch, lambda name, value: probe(named(name), value))

    observation = check(loss, WEIGHTS, (INPUTS, jnp.bool_(outer), jnp.bool_(inner)), twin=probed, exactly=False)
    ran = {name for name, seen in observation.seen.items() if seen.activation is not None}
    leaf = "outer/inner/curved" if inner else "outer/inner/straight"
    assert ran == ({"outer", "outer/inner", leaf} if outer else {"outer", "outer/zero"})


@pytest.mark.slow
def test_a_branch_inside_a_scan_is_taken_or_not_in_every_iteration() -> None:
    flags = jnp.array([True, False, False, True])

    def loss(weight: Any, x: Any) -> Any:
        def block(carry: Any, flag: Any) -> Any:
            return jax.lax.cond(flag, curved, straight, weight, carry), None

        return layer("blocks", lambda: jax.lax.scan(block, x, flags)[0]).sum()

    def twin(weight: Any, x: Any, probe: Probe) -> Any:
        for iteration, flag in enumerate(flags.tolist()):
            here = f"blocks[{iteration}]"
            made = probe(f"{here}/curved", dense(weight, x)) if flag else probe(f"{here}/straight", x @ weight)
            x = probe(here, made)
        return probe("blocks", x).sum()

    observation = check(loss, WEIGHTS, INPUTS, twin=twin, exactly=False)
    ran = {name for name, seen in observation.seen.items() if seen.activation is not None and "/" in name}
    assert ran == {"blocks[0]/curved", "blocks[1]/straight", "blocks[2]/straight", "blocks[3]/curved"}


@pytest.mark.slow
def test_a_scan_inside_a_branch() -> None:
    def loss(weight: Any, batch: Any) -> Any:
        x, flag = batch

        def scanned(weight: Any, x: Any) -> Any:
            block = lambda carry, _: (layer("step", dense, weight, carry), None)  # noqa: E731
            return jax.lax.scan(block, x, None, length=3)[0]

        return jax.lax.cond(flag, scanned, straight, weight, x).sum()

    def twin(weight: Any, batch: Any, probe: Probe) -> Any:
        x, _ = batch
        for iteration in range(3):
            x = probe(f"step[{iteration}]", dense(weight, x))
        return x.sum()

    check(loss, WEIGHTS, (INPUTS, jnp.bool_(True)), twin=twin, exactly=False)
    observation = check_gradients(loss, WEIGHTS, (INPUTS, jnp.bool_(False)))
    assert [observation.seen[f"step[{iteration}]"].activation for iteration in range(3)] == [None, None, None]


@pytest.mark.slow
@pytest.mark.parametrize("iterations", [0, 1, 3])
def test_branches_and_while_loops_inside_each_other(iterations: int) -> None:
    def loss(weight: Any, batch: Any) -> Any:
        x, flag, iterations = batch

        def looped(weight: Any, x: Any) -> Any:
            def body(iteration: Any, carry: Any) -> Any:
                return jax.lax.cond(iteration % 2 == 0, curved, straight, weight, carry)

            return layer("loop", lambda: jax.lax.fori_loop(0, iterations, body, x))

        made = jax.lax.cond(flag, looped, zero, jax.lax.stop_gradient(weight), jax.lax.stop_gradient(x))
        return (dense(weight, x) * made).sum()

    for flag in (True, False):
        observation = check_gradients(loss, WEIGHTS, (INPUTS, jnp.bool_(flag), jnp.int32(iterations)))
        ran = {name for name, seen in observation.seen.items() if seen.activation is not None}
        last = f"loop[{max(iterations - 1, 0)}]"
        of_last = {f"{last}/curved", f"{last}.0"}
        assert of_last & ran == (of_last if flag and iterations else set())
        assert f"{last}/straight" not in ran  # the last iteration here is an even one
        assert ("loop" in ran, "zero" in ran) == (flag, not flag)


@pytest.mark.slow
def test_a_branch_that_is_checkpointed_and_one_that_is_jitted() -> None:
    def loss(weight: Any, batch: Any) -> Any:
        x, flag = batch
        return jax.lax.cond(flag, jax.checkpoint(curved), jax.jit(straight), weight, x).sum()

    def twin(weight: Any, batch: Any, probe: Probe) -> Any:
        return probe("curved", dense(weight, batch[0])).sum()

    check(loss, WEIGHTS, (INPUTS, jnp.bool_(True)), twin=twin, exactly=False)
    check_gradients(loss, WEIGHTS, (INPUTS, jnp.bool_(False)))


@pytest.mark.slow
def test_a_batched_branch_is_a_selection_and_both_sides_run() -> None:
    def loss(weight: Any, x: Any) -> Any:
        one = lambda row: jax.lax.cond(row.sum() > 0, curved, straight, weight, row)  # noqa: E731
        return (jax.vmap(one)(x) ** 2).sum()

    def twin(weight: Any, x: Any, probe: Probe) -> Any:
        sides = probe("curved", dense(weight, x)), probe("straight", x @ weight)
        return (jnp.where(x.sum(axis=1, keepdims=True) > 0, *sides) ** 2).sum()

    check(loss, WEIGHTS, INPUTS, twin=twin)


@pytest.mark.slow
def test_a_program_mapped_over_flags_states_row_by_row_what_ran() -> None:
    def loss(weight: Any, batch: Any) -> Any:
        x, flag = batch
        return jax.lax.cond(flag, curved, straight, weight, x).sum()

    observation = observe(loss, WEIGHTS, (INPUTS, jnp.bool_(True)))
    program, _ = observing_program(observation.trace, observation.plan)
    mapped = jax.vmap(lambda flag: program([WEIGHTS, INPUTS, flag]))(jnp.array([True, False, True]))
    names = [site.names[0].template for site in observation.plan.sites if site.names]
    executed = {name: mapped.captured.executed[number].tolist() for number, name in enumerate(names)}
    assert executed == {"straight": [False, True, False], "curved": [True, False, True]}


@pytest.mark.slow
def test_keys_and_flags_made_in_branches() -> None:
    def loss(weight: Any, batch: Any) -> Any:
        x, key, flag = batch

        def noisy(key: Any, x: Any) -> Any:
            key = layer("fold", jax.random.fold_in, key, 1)
            mask = layer("mask", lambda: jax.random.bernoulli(key, 0.5, x.shape))
            return layer("drop", jnp.where, mask, x, jnp.zeros_like(x)), key

        made, key = jax.lax.cond(flag, noisy, lambda key, x: (x, key), key, x)
        return (made @ weight).sum() * jax.random.normal(key)

    key = jax.random.key(0)
    observation = check_gradients(loss, WEIGHTS, (INPUTS, key, jnp.bool_(True)))
    mask = jax.random.bernoulli(jax.random.fold_in(key, 1), 0.5, INPUTS.shape)
    np.testing.assert_array_equal(observation.seen["mask"].activation, mask)
    assert_close(observation.seen["drop"].activation, jnp.where(mask, INPUTS, 0.0))
    assert observation.seen["mask"].gradient is None


def test_of_branches_by_platform_the_one_for_this_platform_is_recorded() -> None:
    def loss(weight: Any, x: Any, probe: Probe = unprobed) -> Any:
        made = layer("choice", lambda: jax.lax.platform_dependent(weight, x, cpu=curved, default=straight), probe=probe)
        return made.sum()

    def twin(weight: Any, x: Any, probe: Probe) -> Any:
        return probe("choice", probe("choice/curved", dense(weight, x))).sum()

    observation = check(loss, WEIGHTS, INPUTS, twin=twin, exactly=False)
    assert observation.seen["choice/straight"].activation is None
