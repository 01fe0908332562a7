"""What JAX refuses to differentiate may stand behind a `stop_gradient`: observing it changes no gradient."""

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

import gradscope as gs
from tests.support.data import evenly
from tests.support.sampled import sampled

Function = Callable[..., Any]

MANY, OTHERS = evenly(0.2, 0.8, 3, 4), evenly(0.3, 0.7, 3, 4)


def _linear(by: Any, x: Any) -> Any:
    return jax.custom_derivatives.linear_call(lambda by, x: by * x, lambda by, x: by * x, by, x)


@jax.custom_batching.custom_vmap
def _with_batching_rule(one: Any, by: Any) -> Any:
    return jnp.sin(one) * by


@_with_batching_rule.def_vmap
def _of_many(size: int, _batched: Any, one: Any, by: Any) -> tuple[Any, bool]:
    return _with_batching_rule(one, jnp.broadcast_to(by, (size, *by.shape))), True


_SUMMED = lax.RaggedDotDimensionNumbers((([0], [0]), ([], [])), lhs_ragged_dimensions=[0], rhs_group_dimensions=[])


def _pool(x: Any) -> Any:
    return lax.reduce_window(x, -jnp.inf, lax.max, (2, 2), (1, 1), "VALID", window_dilation=(1, 2))


#: Functions of a constant and a value, and whether JAX differentiates by a constant in the same call.
PARTLY: dict[str, Function] = {
    "the order of a polygamma function": lambda a, x: lax.polygamma(a + 1, x + 1),
    "the shape of a distribution": lambda a, x: jax.scipy.special.betainc(a, 2.0, x),
    "what a linear function has": _linear,
    "the initial value of a reduction": lambda a, x: lax.reduce(x, a[0, 0], lambda one, by: one * by, (0,)),
    "factors at places": lambda a, x: x.at[jnp.array([0, 0])].multiply(a[0]),
}
NOT: dict[str, Function] = {
    "all singular vectors": lambda a, x: jnp.linalg.svd(a)[1][None] + x[:, :3],
    "eigenvectors": lambda a, x: jnp.abs(jnp.linalg.eig(a[:, :3])[1]) + x[:, :3],
    "windows": lambda a, x: lax.reduce_window(a, a[0, 0], lambda one, by: one * by, (2, 2), (1, 1), "SAME") + x,
    "a function with a batching rule": lambda a, x: jax.vmap(_with_batching_rule, (0, None))(a, a[0]) + x,
    "a function at places": lambda a, x: a.at[0].apply(jnp.sin) + x,
    "a sum over groups": lambda a, x: lax.ragged_dot_general(a, a, jnp.array([1, 2]), _SUMMED)[0, :3] + x,
    "the derivative of a pool with gaps": lambda a, x: jax.jvp(_pool, (a,), (a,))[1] + x[:2, :2],
    "a system without its transpose": lambda a, x: lax.custom_linear_solve(lambda y: 2 * y, a, lambda _, b: b / 2) + x,
}


def _loss(function: Function) -> Function:
    def loss(params: Any) -> Any:
        constant = lax.stop_gradient(params["a"] * 1.5)
        return jnp.sum(jnp.sin(function(constant, params["x"] * 1.1)))

    return loss


#: Functions that LLVM takes half a minute over, where it optimises.
LARGE = ("the order of a polygamma function", "the shape of a distribution")


@sampled("name", [pytest.param(name, marks=pytest.mark.slow if name in LARGE else ()) for name in (*PARTLY, *NOT)])
@pytest.mark.parametrize("ops", [True, "inputs"])
def test_a_refused_operand_is_constant_as_in_the_plain_program(name: str, ops: Any) -> None:
    loss, params = _loss((PARTLY | NOT)[name]), {"a": MANY, "x": OTHERS}
    dump = gs.capture(loss, params, ops=ops)
    np.testing.assert_allclose(dump["param_grad/x"], jax.grad(loss)(params)["x"], rtol=1e-5)
    absent = {entry.absent for entry in dump.manifest.entries if entry.family == "activation_grad"}
    assert absent >= ({"forward-only"} if name in NOT else {"disconnected"})


@pytest.mark.slow
def test_the_same_operations_where_they_can_be_differentiated_have_their_gradients() -> None:
    def loss(params: Any) -> Any:
        constant = lax.stop_gradient(params["a"] * 1.5)
        return jnp.sum(jnp.linalg.svd(constant, full_matrices=False)[1]) + constant.at[0].set(params["x"][0]).sum()

    dump = gs.capture(loss, {"a": MANY, "x": OTHERS}, ops=True)
    gradient = jax.grad(lambda a: jnp.sum(jnp.linalg.svd(a, full_matrices=False)[1]) + a[1:].sum())(MANY * 1.5)
    stopped = next(key for key in dump if key.startswith("activation_grad/") and key.endswith("stop_gradient"))
    np.testing.assert_allclose(dump[stopped], gradient, rtol=1e-4)


@pytest.mark.slow
def test_a_function_with_a_batching_rule_may_ask_for_an_axis_of_the_mesh() -> None:
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
    total = jax.custom_batching.sequential_vmap(lambda x: lax.psum(jnp.sin(x), "data"))

    def loss(params: Any) -> Any:
        shards = partial(jax.shard_map, mesh=mesh, in_specs=PartitionSpec("data"), out_specs=PartitionSpec("data"))
        return shards(lambda x: x * total(lax.stop_gradient(x)))(params["x"]).sum()

    params = {"x": evenly(0.2, 0.8, 4, 3)}
    dump = gs.capture(loss, params, ops=True)
    np.testing.assert_allclose(dump["param_grad/x"], jax.grad(loss)(params)["x"], rtol=1e-5)
