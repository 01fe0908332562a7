"""The facts and totals of an inspection, and that the facts add up to the totals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from gradscope.errors import ModelError
from gradscope.inspection.inspect_loss import Fact, Inspection, inspect_loss
from gradscope.instrument.query.trace_query import TraceQuery
from gradscope.naming import OUTSIDE
from tests.support.data import filled

W = {"a": filled(1.0, 6, 4), "b": filled(1.0, 4, 4), "idle": filled(1.0, 3)}
X = filled(1.0, 8, 6)


def inspected(loss: Callable[[Any, Any], Any], variables: Any = W, batch: Any = X, **options: Any) -> Inspection:
    return inspect_loss(loss, *jax.eval_shape(lambda: (variables, batch)), **options)


def network(w: Any, x: Any) -> Any:
    with jax.named_scope("net"):
        with jax.named_scope("first"):
            x = x @ w["a"]
        with jax.named_scope("second"):
            x = jnp.tanh(x @ w["b"] @ w["b"])
    return (x * 2.0).sum()


def by_name(inspection: Inspection, family: str = "activation") -> dict[str, Fact]:
    return {fact.name: fact for fact in inspection.facts if fact.family == family}


def test_a_layer_includes_its_parts_and_the_outermost_add_up_to_the_totals() -> None:
    found = inspected(network)
    layers = by_name(found)
    assert list(layers) == ["net", "net/first", "net/second", OUTSIDE]
    for number in ("flops", "backward_flops", "operations"):
        value = {name: fact.values[number] for name, fact in layers.items()}
        assert value["net"] == value["net/first"] + value["net/second"]  # type: ignore[operator]
        assert found.totals[number] == value["net"] + value[OUTSIDE]  # type: ignore[operator]
    assert layers["net/first"].values["flops"] == 2 * 8 * 6 * 4
    assert layers[OUTSIDE].values["flops"] == 32 + 31


def test_a_layer_has_shape_parameters_bytes_and_source() -> None:
    values = by_name(inspected(network))["net/second"].values
    assert (values["shape"], values["dtype"]) == ([8, 4], "float32")
    assert (values["parameters"], values["parameter_share"]) == (16, 16 / 43)
    assert values["activation_bytes"] == 8 * 4 * 4
    assert str(values["source"]).startswith("test_inspect_loss.py:")


def test_a_parameter_lists_its_users_and_the_totals_list_unused_parameters() -> None:
    found = inspected(network)
    parameters = by_name(found, "param")
    assert list(parameters) == ["a", "b", "idle"]  # in order of use
    assert parameters["b"].values["used_by"] == ["net/second"]
    assert parameters["idle"].values["used_by"] == []
    assert found.totals["unused_parameters"] == ["idle"]
    assert (found.totals["parameters"], found.totals["parameter_bytes"]) == (24 + 16 + 3, 4 * 43)


@pytest.mark.slow
def test_a_shared_parameter_counts_once_in_the_totals() -> None:
    def loss(w: Any, x: Any) -> Any:
        for _ in range(2):
            with jax.named_scope("dense"):
                x = x @ w
        return x.sum()

    found = inspected(loss, jnp.ones((4, 4)), jnp.ones((2, 4)))
    assert by_name(found, "param")["value"].values["used_by"] == ["dense", "dense#2"]
    assert found.totals["parameters"] == 16


def test_a_layer_in_a_loop_is_one_row_for_all_iterations() -> None:
    def loss(w: Any, x: Any) -> Any:
        def step(carry: Any, kernel: Any) -> Any:
            with jax.named_scope("dense"):
                return jnp.tanh(carry @ kernel), None

        with jax.named_scope("block"):
            return jax.lax.scan(step, x, w)[0].sum()

    values = by_name(inspected(loss, jnp.ones((3, 4, 4)), jnp.ones((2, 4))))["block[*]/dense"].values
    assert values["iterations"] == 3
    assert values["flops"] == 3 * (2 * 2 * 4 * 4 + 8)
    assert values["activation_bytes"] == 3 * 2 * 4 * 4
    assert values["parameters"] == 48


def test_the_residuals_of_the_backward_pass_are_those_of_jax() -> None:
    def plain(w: Any, x: Any) -> Any:
        return jnp.sin(jnp.sin(w * x)).sum()

    def checkpointed(w: Any, x: Any) -> Any:
        return jax.checkpoint(plain)(w, x)

    w = x = jnp.ones(10)
    assert inspected(plain, w, x).totals["residual_bytes"] == 2 * 10 * 4  # both cosines; `x` is there already
    assert inspected(checkpointed, w, x).totals["residual_bytes"] == 0


def test_a_loss_without_a_backward_pass_has_forward_costs_only() -> None:
    def loss(w: Any, x: Any) -> Any:
        return jax.lax.while_loop(lambda c: c[0, 0] < 9.0, lambda c: c + 1.0, x @ w["a"]).sum()

    found = inspected(loss)
    assert "backward_flops" not in found.totals
    assert "residual_bytes" not in found.totals
    assert found.totals["loops_counted_once"] == 1


def test_an_invalid_loss_is_refused() -> None:
    with pytest.raises(ModelError, match="must be a scalar"):
        inspected(lambda w, x: x)


def test_operations_add_up_to_their_layer_and_do_not_change_the_totals() -> None:
    layers, every = inspected(network), inspected(network, operations=True)
    assert every.totals == layers.totals
    facts = by_name(every)
    inside = [name for name in facts if name.startswith("net/second/")]
    assert [name.rsplit("/", 1)[1] for name in inside] == ["dot_general", "dot_general#2", "tanh"]
    for number in ("flops", "backward_flops", "operations"):
        assert sum(facts[name].values[number] for name in inside) == facts["net/second"].values[number]  # type: ignore[misc]
    assert by_name(every, "param")["b"].values["used_by"] == ["net/second/dot_general", "net/second/dot_general#2"]


def test_a_fetch_lists_the_needed_operations_of_each_layer_and_the_inputs() -> None:
    batch = {"x": X, "target": jnp.ones(())}

    def loss(w: Any, batch: Any) -> Any:
        return (network(w, batch["x"]) - batch["target"]) ** 2

    found = inspected(loss, batch=batch, query=TraceQuery(fetches=("net/first",)))
    assert found.fragment is not None
    assert found.fragment.to_json() == {"needed": 1, "total": 8, "inputs": ["x"]}
    needed = {name: fact.values["needed"] for name, fact in by_name(found).items()}
    assert needed == {"net": 1, "net/first": 1, "net/second": 0, OUTSIDE: 0}


def test_a_fed_value_needs_none_of_its_sources() -> None:
    query = TraceQuery(fetches=("net/second",), feeds={"net/first": jnp.ones((8, 4))})
    found = inspected(network, query=query).fragment
    assert found is not None
    assert (found.needed, found.inputs) == (3, ())
