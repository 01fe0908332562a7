"""A running variance that is divided by N - 1 where the reference's is by N: a difference, however small it is."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.api.reading import Dump
from gradscope.comparison.diagnosis.likely.running_statistics import RunningStatistics
from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.dump.interfaces import DumpSource
from tests.support.sampled import sampled

_draw = np.random.default_rng(17).normal
KERNEL = _draw(size=(4, 6)).astype(np.float32)
X = _draw(size=(50, 4)).astype(np.float32)
BEFORE = {"zeros": np.zeros(6, np.float32), "ones": np.ones(6, np.float32), "drawn": np.square(_draw(size=6))}


@cache
def _program(
    name: str, *, before: str = "ones", unbiased: bool = False, momentum: float = 5e-4, order: int = 1
) -> Dump:
    def loss(weights: Any, batch: Any) -> Any:
        with jax.named_scope(name):
            # The order of the sum is another, so that the programs differ by rounding, too.
            x = batch["x"][::order] @ weights[name]["kernel"]
            mean, variance = x.mean(0), x.var(0)
            x = (x - mean[None]) * jax.lax.rsqrt(variance + 1e-5)[None]
        stored = variance * 50 / 49 if unbiased else variance
        old = jax.lax.stop_gradient(weights[name]["var"])
        return jnp.square(x - 0.5).mean(), {name: {"var": (1 - momentum) * old + momentum * stored}}

    weights = {name: {"kernel": KERNEL, "var": BEFORE[before].astype(np.float32)}}
    return gs.capture(loss, weights, {"x": X}, has_aux=True, origins=False)


@pytest.mark.slow
@pytest.mark.parametrize("before", ["ones", "drawn"])
def test_another_divisor_of_a_running_variance_is_reported_within_the_tolerance(before: str) -> None:
    biased, unbiased = _program("norm", before=before), _program("bn", before=before, unbiased=True, order=-1)
    found = gs.compare(biased, unbiased)
    (row,) = (row for row in found.rows if row.family == "aux" and row.status == "different")
    assert (row.name, row.why) == ("norm/var", "divides the variance by 49, and the reference by 50")
    assert row.needed is not None
    assert row.needed < 1e-4
    assert "it divides the variance by 49, and the reference by 50" in found.sentence
    back = gs.compare(unbiased, biased)
    assert "it divides the variance by 50, and the reference by 49" in back.sentence
    # A tolerance that is asked for is what is asked for.
    assert gs.compare(biased, unbiased, tol=1e-2).verdict == "same"


@pytest.mark.slow
def test_statistics_that_move_by_another_share_are_told_by_how_much() -> None:
    kept, swapped, slower = (_program("norm", before="drawn", momentum=each) for each in (0.1, 0.9, 0.03))
    sentence = gs.compare(kept, swapped).sentence
    words = (
        "it moves 9 times as far from its value before the step as the reference's, "
        "as where a batch counts 0.9, not 0.1: momentum is this share in PyTorch, and the rest in Flax"
    )
    assert words in sentence, sentence
    assert (
        "moves 0.3 times as far from its value before the step as the reference's)" in gs.compare(kept, slower).sentence
    )
    # Statistics that begin at zero move by all that they are.
    assert words in gs.compare(*(_mean_from_zero(each) for each in (0.1, 0.9))).sentence
    # Where the update is another one, no share is told.
    other = _program("norm", before="drawn", momentum=0.9, unbiased=True)
    doubled = _program("norm", before="ones", momentum=0.1)
    assert not any("times as far" in gs.compare(kept, each).sentence for each in (other, doubled))


@cache
def _mean_from_zero(momentum: float) -> Dump:
    def loss(variables: Any, batch: Any) -> Any:
        with jax.named_scope("norm"):
            x = batch["x"] @ variables["params"]["norm"]["kernel"]
            old = variables["batch_stats"]["norm"]["mean"]
            updated = (1 - momentum) * old + momentum * x.mean(0)
        return jnp.square(x - 0.5).mean(), {"batch_stats": {"norm": {"mean": updated}}}

    variables = {"params": {"norm": {"kernel": KERNEL}}, "batch_stats": {"norm": {"mean": np.zeros(6, np.float32)}}}
    return gs.capture(loss, variables, {"x": X}, has_aux=True, origins=False)


@pytest.mark.slow
def test_an_update_of_a_parameter_has_no_momentum_of_statistics() -> None:
    def updated(rate: float) -> Dump:
        def loss(weights: Any, batch: Any) -> Any:
            with jax.named_scope("dense"):
                x = batch["x"] @ KERNEL + jnp.broadcast_to(weights["bias"], (len(X), 6))
            new = jax.lax.stop_gradient(weights["bias"] - rate * x.mean(0))
            return jnp.square(x).mean(), {"bias": new}

        return gs.capture(loss, {"bias": np.square(BEFORE["drawn"]).astype(np.float32)}, {"x": X}, has_aux=True)

    sentence = gs.compare(updated(0.1), updated(0.9)).sentence
    assert "it moves 9 times as far from its value before the step as the reference's)" in sentence, sentence


@sampled("before", BEFORE)
@pytest.mark.parametrize("unbiased", [False, True])
def test_no_other_difference_is_taken_for_another_divisor(before: str, unbiased: bool) -> None:
    one = _program("norm", before=before, unbiased=unbiased)
    assert gs.compare(one, _program("bn", before=before, unbiased=unbiased, order=-1)).verdict == "same"
    other = gs.compare(one, _program("bn", before=before, unbiased=unbiased, momentum=6e-4))
    assert "divides" not in other.sentence


class _Counting:
    """A dump that counts how often its manifest is asked for."""

    def __init__(self, source: DumpSource) -> None:
        self._source = source
        self.looks = 0

    def __getattr__(self, name: str) -> Any:
        self.looks += name == "manifest"
        return getattr(self._source, name)


@pytest.mark.slow
def test_the_entries_of_a_dump_are_gone_through_once_for_all_pairs() -> None:
    def program(*, unbiased: bool) -> Dump:
        def loss(weights: Any, batch: Any) -> Any:
            new: dict[str, Any] = {}
            x = batch["x"]
            for name in weights:
                with jax.named_scope(name):
                    x = batch["x"] @ weights[name]["kernel"]
                    variance = x.var(0) * (50 / 49 if unbiased else 1)
                new[name] = {"var": 0.999 * jax.lax.stop_gradient(weights[name]["var"]) + 1e-3 * variance}
            return jnp.square(x).mean(), new

        weights = {f"norm{n}": {"kernel": KERNEL + n, "var": BEFORE["ones"].astype(np.float32)} for n in range(5)}
        return gs.capture(loss, weights, {"x": X}, has_aux=True, origins=False)

    one, other = program(unbiased=False).source, program(unbiased=True).source
    counting: Any = _Counting(one)
    matches = [Match.of(key, key, "name") for key in one.keys() if key.startswith("aux/")]  # noqa: SIM118 - no mapping
    statistics = RunningStatistics(Dumps(ref=counting, cand=other))
    assert len(matches) == 5
    assert {statistics.other_divisor(match) for match in matches} == {
        "divides the variance by 49, and the reference by 50"
    }
    assert counting.looks == 4


@pytest.mark.slow
def test_a_difference_that_nothing_explains_is_named_before_another_divisor() -> None:
    def program(*, port: bool) -> Dump:
        def loss(weights: Any, batch: Any) -> Any:
            new: dict[str, Any] = {}
            x = batch["x"]
            for name, own in weights.items():
                with jax.named_scope(name):
                    x = batch["x"] @ own["kernel"]
                variance, share = x.var(0) * (50 / 49 if port else 1), 0.1 if port and name == "norm1" else 1e-3
                new[name] = {"var": (1 - share) * jax.lax.stop_gradient(own["var"]) + share * variance}
            return jnp.square(x).mean(), new

        weights = {f"norm{n}": {"kernel": KERNEL + n, "var": BEFORE["ones"].astype(np.float32)} for n in range(2)}
        return gs.capture(loss, weights, {"x": X}, has_aux=True, origins=False)

    found = gs.compare(program(port=False), program(port=True))
    assert found.sentence.startswith("Forward first differs at `norm1/var` (rel_l2 "), found.sentence
    assert next(row for row in found.rows if row.name == "norm0/var" and row.family == "aux").likely
