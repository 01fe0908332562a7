"""`check` of models that run in a `shard_map`: rules and stopped values inside it are those outside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AxisType, PartitionSpec

from gradscope.tracing.jaxpr.sharding import varying
from tests.oracle.proof.check.test_rules import half_squared, proof, rule, statuses
from tests.support.sampled import sampled


def sharded(function: Callable[[Any, Any], Any], *, check_vma: bool = True) -> Callable[[Any, Any], Any]:
    """The mean of a function over the shards of a mesh of one device."""

    def loss(w: Any, x: Any) -> Any:
        mesh = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Auto,), devices=jax.devices()[:1])
        mean = jax.shard_map(
            lambda w, x: lax.pmean(function(w, x).mean(), "data"),
            mesh=mesh,
            in_specs=(PartitionSpec(), PartitionSpec("data")),
            out_specs=PartitionSpec(),
            check_vma=check_vma,
        )
        return mean(w, x)

    return loss


@jax.custom_vjp
def rounded(x: Any) -> Any:
    return jnp.round(4.0 * x)


rounded.defvjp(lambda x: (rounded(x), None), lambda _, g: (g,))


@jax.custom_vjp
def summed(x: Any) -> Any:
    return lax.psum(x, "data")


summed.defvjp(lambda x: (summed(x), None), lambda _, g: (lax.psum(g, "data"),))


@jax.custom_vjp
def times_shards(x: Any) -> Any:
    return lax.psum(x, "data")


times_shards.defvjp(lambda x: (times_shards(x), None), lambda _, g: (varying(g, ("data",)),))


@jax.custom_vjp
def twice_as_steep(x: Any) -> Any:
    return lax.psum(x, "data")


twice_as_steep.defvjp(lambda x: (twice_as_steep(x), None), lambda _, g: (varying(2.0 * g, ("data",)),))


def test_what_a_shard_stops_counts_as_constant() -> None:
    found = proof(sharded(lambda w, x: (x @ w) * lax.stop_gradient(jnp.sin(x @ w))))
    assert set(statuses(found).values()) == {"correct"}


@pytest.mark.slow
@sampled("check_vma", [False, True])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_wrong_rule_is_named_inside_a_shard_map(check_vma: bool, dtype: Any) -> None:
    loss = sharded(lambda w, x: half_squared((x @ w).astype(dtype)), check_vma=check_vma)
    found = rule(proof(loss), "half_squared")
    assert (found.status, found.why) == ("wrong", "x: 0.5 times the derivative")


def test_a_rule_with_a_collective_is_checked_where_types_say_what_varies() -> None:
    found = proof(sharded(lambda w, x: times_shards(jnp.sin(x @ w)) * twice_as_steep(x @ w)))
    assert rule(found, "times_shards").status == "correct"
    assert (rule(found, "twice_as_steep").factor, rule(found, "twice_as_steep").allow) == (2.0, None)


def test_a_rule_that_runs_on_a_mesh_alone_is_said_not_to_be_checked() -> None:
    found = proof(sharded(lambda w, x: summed(jnp.sin(x @ w)), check_vma=False))
    assert (rule(found, "summed").status, rule(found, "summed").why) == (
        "not checked",
        "it runs inside its shard_map alone",
    )
    assert {row.status for row in found.gradients} == {"correct"}


@pytest.mark.slow
@pytest.mark.parametrize("check_vma", [False, True])
def test_a_rule_inside_a_shard_map_can_be_allowed(check_vma: bool) -> None:
    loss = sharded(lambda w, x: jnp.sin(rounded(x @ w)), check_vma=check_vma)
    found = proof(loss, allowed=("rounded",))
    assert {row.status for row in found.gradients} == {"correct"}
    assert found.verdict == "correct"
