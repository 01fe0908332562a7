"""A layer that is called in a scan, and around it, is the same as in the loop written out, whose calls are numbered."""

from __future__ import annotations

from functools import cache
from itertools import permutations
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import gradscope as gs
from tests.support.data import drawn
from tests.support.sampled import sampled

pytestmark = pytest.mark.usefixtures("compiled_in_a_hurry")

ITERATIONS = 2

#: How often the layer is called before the loop, in each iteration, and behind the loop.
CALLS = {"before and behind": (1, 1, 1), "twice, and twice behind": (0, 2, 2)}


def called(variables: dict[str, Any], x: Any, times: int, factor: Any = 1.0) -> Any:
    """Calls the layer some times; the factor is that of the last call."""
    for call in range(times):
        x = jnp.sin(x)
        with jax.named_scope("shared"):
            x = jnp.tanh(x @ variables["w"]) * (factor if call == times - 1 else 1.0)
    return x


@cache
def captured(calls: str, *, scanned: bool, factor: float = 1.0) -> gs.Dump:
    """Returns the dump of a program; the factor is that of the loop's last iteration."""
    before, inside, behind = CALLS[calls]
    factors = jnp.ones(ITERATIONS).at[-1].set(factor)

    def loss(variables: dict[str, Any], batch: dict[str, Any]) -> Any:
        def body(x: Any, factor: Any) -> tuple[Any, None]:
            return called(variables, x, inside, factor), None

        x = called(variables, batch["x"], before)
        if scanned:
            x, _ = jax.lax.scan(body, x, factors)
        else:
            for each in factors:
                x, _ = body(x, each)
        return jnp.square(called(variables, x, behind)).mean()

    return gs.capture(loss, {"w": drawn(1, 3, 3)}, {"x": drawn(2, 4, 3)})


@pytest.mark.slow
@sampled("calls", CALLS)
def test_the_calls_of_a_layer_are_compared_in_turn(calls: str) -> None:
    for one, other in permutations((True, False)):
        found = gs.compare(captured(calls, scanned=one), captured(calls, scanned=other))
        assert found.verdict == "same"
        compared = [row for row in found.rows if row.family == "activation" and "shared" in row.name]
        assert {row.status for row in compared} == {"same"}


@pytest.mark.slow
@pytest.mark.parametrize("calls", CALLS)
def test_a_fault_in_one_of_them_has_its_place(calls: str) -> None:
    before, inside, _ = CALLS[calls]
    found = gs.compare(captured(calls, scanned=False), captured(calls, scanned=True, factor=1.01))
    assert found.first_divergence.forward is not None
    assert found.first_divergence.forward.name == f"shared#{before + inside * ITERATIONS}"


@cache
def looked_at(times: int, *, shift: float = 0.0, factor: float = 1.0) -> gs.Dump:
    """Returns the dump of a network that is called some times before the loss, which reads those but as constants.

    Args:
        times: How often it is called so.
        shift: What the inputs of those calls have more.
        factor: What the call that counts is multiplied with, as a fault.
    """

    def loss(variables: dict[str, Any], batch: dict[str, Any]) -> Any:
        looked = [called(variables, batch["x"] + shift, 1) for _ in range(times)]
        values = called(variables, batch["x"], 1, factor)
        return jnp.square(values - 0.25 * sum(map(jax.lax.stop_gradient, looked))).mean()

    return gs.capture(loss, {"w": drawn(1, 3, 3)}, {"x": drawn(2, 4, 3)})


@pytest.mark.slow
@pytest.mark.parametrize("shift", [0.0, 0.25])
@pytest.mark.parametrize("times", [1, 2])
def test_the_call_that_counts_is_compared_with_the_one_that_counts(times: int, shift: float) -> None:
    few, many = looked_at(0), looked_at(times, shift=shift)
    for ref, cand, name in ((few, many, "shared"), (many, few, f"shared#{times + 1}")):
        found = gs.compare(ref, cand)
        compared = [row for row in found.rows if row.family == "activation" and row.status not in ("missing", "extra")]
        assert [(row.name, row.status) for row in compared] == [(name, "same")]
        assert "no gradient arrives" not in str(found)


def test_a_fault_in_the_call_that_counts_has_its_place() -> None:
    found = gs.compare(looked_at(0), looked_at(1, factor=1.01))
    assert found.first_divergence.forward is not None
    assert found.first_divergence.forward.name == "shared"
    assert found.first_divergence.forward.counterpart == "shared#2"


#: What a program looks at with the layers before the call that counts, from its batch.
DIAGNOSTICS = {
    "a part of the batch": lambda x: x[:2],
    "the batch": lambda x: x,
    "another batch": jnp.ones_like,
}


@cache
def diagnosed(looked_at: str = "", *, factor: float = 1.0) -> gs.Dump:
    """Returns the dump of a program that may call its layers for a diagnostic first; the factor is the first one's."""

    def network(variables: dict[str, Any], x: Any, factor: float = 1.0) -> Any:
        for name in ("first", "second"):
            with jax.named_scope(name):
                x = jnp.tanh(x @ variables[name]) * (factor if name == "first" else 1.0)
        return x

    def loss(variables: dict[str, Any], batch: dict[str, Any]) -> Any:
        seen = {"seen": network(variables, DIAGNOSTICS[looked_at](batch["x"])).max()} if looked_at else {}
        return jnp.square(network(variables, batch["x"], factor)).mean(), seen

    return gs.capture(loss, {"first": drawn(1, 3, 3), "second": drawn(3, 3, 3)}, {"x": drawn(2, 4, 3)})


@pytest.mark.slow
@sampled("looked_at", DIAGNOSTICS)
def test_a_call_that_the_loss_does_not_depend_on_is_not_taken_for_the_one_that_counts(looked_at: str) -> None:
    for one, other in permutations((diagnosed(), diagnosed(looked_at))):
        found = gs.compare(one, other)
        assert [row.name for row in found.rows if row.counts and row.status != "same"] == ["seen"]
    found = gs.compare(diagnosed(), diagnosed(looked_at, factor=1.01))
    assert found.first_divergence.forward is not None
    assert found.first_divergence.forward.name == "first"
