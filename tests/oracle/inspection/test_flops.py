"""What an equation costs, counted by hand."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, PartitionSpec

from gradscope.inspection.layer_costs import Cost, costs_of
from gradscope.tracing.tracer import trace_loss
from tests.support.data import filled

X = filled(1.0, 4, 6)


def cost(function: Callable[[Any], Any], x: Any = X) -> Cost:
    """The cost of a loss that takes the first element of what `function` makes, which is free."""
    return sum(costs_of(trace_loss(lambda w, _: function(w).ravel()[0], x, ())).values(), Cost())


@pytest.mark.parametrize(
    ("function", "flops"),
    [
        (lambda x: x + x, 24),
        (jnp.exp, 24),
        (lambda x: x @ x.T, 2 * 4 * 4 * 6),
        (lambda x: jnp.einsum("ij,ij->i", x, x), 2 * 4 * 6),
        (lambda x: x.sum(axis=0), 18),
        (lambda x: x.max(), 23),
        (lambda x: x**2, 24),
        (lambda x: x**7, 4 * 24),
        (lambda x: jnp.cumsum(x, axis=0), 24),
        (lambda x: x.T.reshape(2, 12)[::-1], 0),
        (lambda x: x.astype(jnp.float16), 0),
        (jnp.zeros((9, 6)).at[jnp.array([1, 1, 2, 3])].add, 24),
        (lambda x: x[jnp.array([0, 1]) * 2], 0),
        (lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (2, 2), (2, 2), "VALID"), 6 * 3),
        (lambda x: jnp.sort(x, axis=1), 24 * 3),
        (lambda x: jax.lax.linalg.cholesky(jnp.eye(6), symmetrize_input=False) * x[0, 0], 6**3 // 3 + 36),
    ],
)
def test_operations_are_counted_as_by_hand(function: Callable[[Any], Any], flops: int) -> None:
    assert cost(function).flops == flops


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "flops"),
    [
        ({"padding": "VALID"}, 2 * 5 * 5 * 9),
        # Of 21 pairs of positions along a dimension, two meet the padding.
        ({"padding": "SAME"}, 2 * 19 * 19),
        ({"padding": "VALID", "window_strides": (2, 2)}, 2 * 3 * 3 * 9),
        ({"padding": "VALID", "rhs_dilation": (2, 2)}, 2 * 3 * 3 * 9),
    ],
)
def test_a_convolution_counts_what_meets_the_image(options: dict[str, Any], flops: int) -> None:
    image, kernel = jnp.ones((1, 1, 7, 7)), jnp.ones((1, 1, 3, 3))
    params = {"window_strides": (1, 1), **options}
    assert cost(lambda w: lax.conv_general_dilated(image, w, **params), kernel).flops == flops


def test_both_gradients_of_a_convolution_cost_what_it_costs() -> None:
    kernel = jnp.ones((8, 4, 3, 3))

    def twice(w: Any) -> Any:
        made = lax.conv_general_dilated(jnp.ones((2, 4, 9, 9)), w, (2, 2), "VALID")  # only the kernel's gradient
        return lax.conv_general_dilated(made, w.transpose(1, 0, 2, 3), (1, 1), "VALID")  # both gradients

    first, second = 2 * 16 * 9 * 2 * 4 * 8, 2 * 4 * 9 * 2 * 8 * 4
    found = cost(twice, kernel)
    assert found.flops == first + second
    assert found.backward_flops == first + 2 * second


def test_a_scan_counts_every_iteration() -> None:
    found = cost(lambda x: lax.scan(lambda c, _: (c @ c, None), x[:, :4], None, length=5)[0])
    assert found.flops == 5 * 2 * 4**3
    assert found.backward_flops == 2 * found.flops
    assert found.operations == 5 + 4


def test_a_checkpoint_is_computed_once_more() -> None:
    plain = cost(lambda x: jnp.sin(x @ x.T))
    checkpointed = cost(jax.checkpoint(lambda x: jnp.sin(x @ x.T)))
    assert checkpointed.flops == plain.flops
    assert checkpointed.backward_flops == plain.backward_flops + plain.flops


def test_of_branches_the_most_expensive_counts() -> None:
    branches = [lambda x: x, lambda x: x @ x.T @ x, jnp.sin]
    assert cost(lambda x: lax.switch(jnp.int32(0), branches, x)).flops == 2 * (2 * 4 * 4 * 6)


def test_a_loop_of_unknown_length_counts_as_one_iteration_and_has_no_backward_pass() -> None:
    def loop(x: Any) -> Any:
        return lax.while_loop(lambda c: c[0, 0] < 9, lambda c: c + c, lax.stop_gradient(x))

    assert cost(loop) == Cost(operations=5, flops=24, backward_flops=0)


def test_a_custom_rule_costs_its_own_backward_pass() -> None:
    @jax.custom_vjp
    def function(x: Any) -> Any:
        return x * 2

    function.defvjp(lambda x: (function(x), x), lambda x, g: (g @ x.T @ x,))
    assert cost(function) == Cost(operations=4, flops=24, backward_flops=2 * (2 * 4 * 4 * 6))


def test_nothing_is_counted_backwards_where_no_parameter_is() -> None:
    def loss(w: Any, batch: Any) -> Any:
        return (jnp.sin(batch) * 3).sum() * w

    found = sum(costs_of(trace_loss(loss, jnp.ones(()), jnp.ones(8))).values(), Cost())
    assert (found.flops, found.backward_flops) == (8 + 8 + 7 + 1, 1)


def test_integers_and_random_bits_cost_nothing() -> None:
    assert cost(lambda x: x[jnp.arange(3) * 2 + 1 - np.int32(1)]).flops == 0


def test_moving_values_to_the_devices_of_a_mesh_costs_nothing_forward_or_backward() -> None:
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
    shards = partial(jax.shard_map, mesh=mesh, in_specs=(PartitionSpec("data"), PartitionSpec()))

    def loss(w: Any, x: Any) -> Any:
        return shards(lambda x, w: lax.psum((x @ w)[0, 0], "data"), out_specs=PartitionSpec())(x, w)

    costs = sum(costs_of(trace_loss(loss, filled(1.0, 6, 5), X)).values(), Cost())
    assert costs.flops == 2 * (2 * 2 * 6 * 5)
    assert costs.backward_flops == costs.flops  # back to the weights alone
