"""The operations of custom rules that ask for a mesh axis, inside of a `shard_map`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from tests.oracle.inspection.test_inspect_loss import inspected
from tests.support.data import filled


@jax.custom_jvp
def summed(x: Any) -> Any:
    return jax.lax.psum(jnp.sin(x), "d")


@summed.defjvp
def _(primals: Any, tangents: Any) -> Any:
    return summed(*primals), jax.lax.psum(jnp.cos(primals[0]) * tangents[0], "d")


@jax.custom_vjp
def sized(x: Any) -> Any:
    return x * jax.lax.psum(1, "d")


sized.defvjp(lambda x: (sized(x), None), lambda _, gradient: (gradient * jax.lax.psum(1, "d"),))


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("function", [summed, sized])
def test_a_rule_that_asks_for_a_mesh_axis_is_counted_for_each_shard(
    function: Callable[[Any], Any], nested: bool
) -> None:
    devices = jax.devices()[:2]
    mesh = Mesh([devices] if nested else devices, ("e", "d") if nested else ("d",))

    def shard(x: Any, w: Any) -> Any:
        with jax.named_scope("rule"):
            return jax.lax.psum((function(x * w) ** 2).sum(), "d")

    def within(x: Any, w: Any) -> Any:
        inside = jax.sharding.get_abstract_mesh()
        split = jax.shard_map(shard, mesh=inside, axis_names={"d"}, in_specs=(P("d"), P()), out_specs=P())
        return jax.lax.psum(split(x, w), "e")

    def loss(w: Any, x: Any) -> Any:
        axes = {"e"} if nested else {"d"}
        body, own = (within, P("e")) if nested else (shard, P("d"))
        return jax.shard_map(body, mesh=mesh, axis_names=axes, in_specs=(own, P()), out_specs=P())(x, w)

    found = inspected(loss, filled(1.0, 1, 4), filled(1.0, 2 * len(devices), 4))
    assert found.totals["backward_flops"] > 0
