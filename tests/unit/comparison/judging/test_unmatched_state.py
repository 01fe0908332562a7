"""State that only a port keeps does not count where all else agrees; state of both that is not the same does."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import numpy as np
import pytest

import gradscope as gs
from gradscope.api.reading import Dump

_draw = np.random.default_rng(3).normal
KERNEL, X = _draw(size=(4, 3)).astype(np.float32), _draw(size=(5, 4)).astype(np.float32)


def _dump(name: str, state: Any, factor: float = 1.0) -> Dump:
    def loss(variables: Any, batch: Any) -> Any:
        with jax.named_scope(name):
            y = batch @ variables["params"][name]["kernel"]
        return factor * (y**2).mean()

    return gs.capture(loss, {"params": {name: {"kernel": KERNEL}}, "extra": state}, X, origins=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (np.array(0, np.uint32), "integers that only one of the programs keeps, and the losses agree"),
        (np.ones((1, 4), bool), "a mask that only one of the programs keeps, and the losses agree"),
        (jax.random.key(3), "a random key that only one of the programs keeps, and the losses agree"),
    ],
)
def test_keys_counts_and_masks_of_a_port_do_not_count(value: Any, reason: str) -> None:
    one, other = _dump("fc", {}), _dump("dense", {"dropout": value})
    for found in (gs.compare(one, other), gs.compare(other, one)):
        assert found.verdict == "same", found.sentence
        assert [row.why for row in found.rows if row.family == "state"] == [reason]


STATISTICS = {"mean": np.zeros(3, np.float32), "var": np.ones(3, np.float32)}


def _training(name: str, state: Any, *, updating: bool = True, slope: float = 1.0) -> Dump:
    """A step that returns new statistics, of all that it has."""

    def loss(variables: Any, batch: Any) -> Any:
        with jax.named_scope(name):
            y = batch @ variables["params"][name]["kernel"]
        new = jax.tree.map(lambda old: 0.9 * old + 0.1, variables["stats"])
        return (slope * y**2).mean(), {"stats": new} if updating else {}

    return gs.capture(loss, {"params": {name: {"kernel": KERNEL}}, "stats": state}, X, origins=False)


@pytest.mark.slow
def test_running_statistics_that_only_one_program_keeps_are_told_beside_the_verdict() -> None:
    one, other = _training("fc", {"norm": STATISTICS}), _training("dense", {})
    for found, sides in (
        (gs.compare(one, other), ("reference", "candidate")),
        (gs.compare(other, one), ("candidate", "reference")),
    ):
        assert found.verdict == "same", found.sentence
        told = "the {} updates 2 running statistics that the {} does not have, `stats/norm/mean`, `stats/norm/var`"
        assert told.format(*sides) in found.sentence


def test_constants_that_only_one_program_keeps_as_state_are_told_beside_the_verdict() -> None:
    found = gs.compare(_dump("fc", {}), _dump("dense", {"table": np.ones(3, np.float32)}))
    assert found.verdict == "same", found.sentence
    assert "the candidate keeps 1 state tensor that the reference does not have, `extra/table`" in found.sentence


@pytest.mark.slow
@pytest.mark.parametrize("is_state_of_ref", [True, False])
def test_a_parameter_that_the_other_program_keeps_as_state_is_told(is_state_of_ref: bool) -> None:
    """As of a bias of logits that is a buffer of a module in PyTorch, and that a port trains."""

    def captured(name: str, *, as_state: bool) -> Dump:
        def loss(variables: Any, batch: Any) -> Any:
            with jax.named_scope(name):
                y = batch @ variables["params"][name]["kernel"]
            bias = variables["head"]["bias"] if as_state else variables["params"]["head"]["bias"]
            return jax.numpy.square(y + bias[None]).mean()

        head = {"head": {"bias": np.zeros(KERNEL.shape[1], np.float32)}}
        params = {name: {"kernel": KERNEL}} | ({} if as_state else head)
        return gs.capture(loss, {"params": params} | (head if as_state else {}), X, origins=False)

    one, other = captured("fc", as_state=is_state_of_ref), captured("dense", as_state=not is_state_of_ref)
    found, (side, its) = gs.compare(one, other), ("reference", "candidate")[:: 1 if is_state_of_ref else -1]
    assert found.verdict == "different"
    assert f"2 tensors only in the {its}, of `head/bias`, which the {side} keeps as state" in found.sentence


@pytest.mark.slow
def test_state_counts_that_both_programs_keep_and_that_is_not_the_same() -> None:
    one, count = _dump("fc", {}), {"count": np.array(2, np.int32)}
    assert gs.compare(one, _dump("fc", count)).verdict == "different"
    rows = gs.compare(one, _dump("dense", count, factor=2.0)).rows
    assert [row.counts for row in rows if row.family == "state"] == [True]
    both = _training("fc", {"norm1": STATISTICS, "norm2": STATISTICS})
    for other in (
        _training("dense", {"a": STATISTICS}),  # those of one layer
        _training("dense", {"a": STATISTICS, "b": STATISTICS}, updating=False),
        _training("dense", {"a": {"m": np.full(3, 7, np.float32), "v": np.full(3, 9, np.float32)}}),  # other values
        _training("dense", {}, slope=1.1),
    ):
        assert gs.compare(both, other).verdict == "different"
        assert gs.compare(other, both).verdict == "different"


WIDE = {"first": _draw(size=(4, 6)).astype(np.float32), "second": _draw(size=(6, 6)).astype(np.float32)}
MOVING = {
    name: {"mean": _draw(size=6).astype(np.float32), "var": _draw(size=6).astype(np.float32) ** 2} for name in WIDE
}


@cache
def _moving(names: tuple[str, ...], momentum: float = 0.1, *, biased: bool = False) -> Dump:
    """Two layers, after each of which running statistics move; their names are those of the layers, or are numbered."""
    apart = names != tuple(WIDE)

    def loss(variables: Any, x: Any) -> Any:
        new: list[Any] = []
        for name, old in zip(names, variables["statistics"].values(), strict=True):
            with jax.named_scope(name):
                x = x @ variables["params"][name]
            statistics = (x.mean(0), x.var(0) * (1.0 if biased else 1.25))
            new.append([old + momentum * (each - old) for old, each in zip(old.values(), statistics, strict=True)])
        kept = {str(at): dict(zip("mv", each, strict=True)) for at, each in enumerate(new)}
        named = {name: dict(zip(("mean", "var"), each, strict=True)) for name, each in zip(names, new, strict=True)}
        return jax.numpy.square(x).mean(), jax.lax.stop_gradient(kept if apart else named)

    statistics = {f"{name}_statistics": each for name, each in zip(names, MOVING.values(), strict=True)}
    variables = {"params": dict(zip(names, WIDE.values(), strict=True)), "statistics": statistics}
    return gs.capture(loss, variables, X, origins=False)


@pytest.mark.parametrize("biased", [False, True])
def test_statistics_that_move_by_another_momentum_are_compared_with_those_that_move_from_the_same(biased: bool) -> None:
    found = gs.compare(_moving(tuple(WIDE)), _moving(("a", "b"), 0.9, biased=biased))
    rows = {row.name: row.counterpart for row in found.rows if row.family == "aux" and row.status == "different"}
    assert rows == {"first/mean": "0/m", "first/var": "0/v", "second/mean": "1/m", "second/var": "1/v"}
    assert gs.compare(_moving(tuple(WIDE)), _moving(("a", "b"))).verdict == "same"


EDGES = {"sender": np.array([0, 1, 1, 3, 4], np.int32), "receiver": np.array([1, 0, 2, 2, 3], np.int32)}


@cache
def _graph(name: str, *, edges: bool = True, matrix: bool = False, slope: float = 1.0) -> Dump:
    """A sum over the edges of a graph, which are a list of them or a matrix."""
    dense = np.zeros((5, 5), np.float32)
    dense[EDGES["receiver"], EDGES["sender"]] = 1

    def loss(variables: Any, batch: Any) -> Any:
        with jax.named_scope(name):
            y = batch["x"] @ variables[name]
        if matrix:
            y = slope * batch["matrix"] @ y
        else:
            y = slope * jax.ops.segment_sum(y[EDGES["sender"]], batch.get("receiver", EDGES["receiver"]), 5)
        return jax.numpy.square(y).mean()

    batch = {"x": X} | (EDGES if edges and not matrix else {}) | ({"matrix": dense} if matrix else {})
    return gs.capture(loss, {name: WIDE["first"]}, batch, origins=False)


@pytest.mark.slow
def test_inputs_of_which_each_program_has_a_form_of_its_own_are_told_beside_the_verdict() -> None:
    one, other = _graph("fc"), _graph("dense", matrix=True)
    for found in (gs.compare(one, other), gs.compare(other, one)):
        assert found.verdict == "same", found.sentence
        assert "reads 1 input that the " in found.sentence
        assert "`matrix`" in found.sentence
    assert gs.compare(one, _graph("dense", matrix=True, slope=1.1)).verdict == "different"
    assert gs.compare(one, _graph("dense", edges=False)).verdict == "different"  # it lacks inputs, and has none instead


def _averaging(name: str, average: Any, **beside: Any) -> Dump:
    """A network in evaluation, that divides by an average of what it has seen."""

    def loss(variables: Any, batch: Any) -> Any:
        with jax.named_scope(name):
            y = batch @ variables["params"][name]["kernel"] * variables["state"][name]["average"][None]
        return (y**2).mean(), {"state": variables["state"]}

    state = {name: {"average": np.asarray(average, np.float32), **beside}}
    return gs.capture(loss, {"params": {name: {"kernel": KERNEL}}, "state": state}, X, origins=False)


def test_the_sum_that_haiku_keeps_beside_an_average_does_not_count_where_the_average_agrees() -> None:
    average, zero = [0.5, 1.5, 2.5], {"counter": np.array(0, np.int32), "hidden": np.zeros(3, np.float32)}
    one, other = _averaging("norm", average), _averaging("norm1", average, **zero)
    for found in (gs.compare(one, other), gs.compare(other, one)):
        assert found.verdict == "same", found.sentence
        assert "the sum that Haiku keeps beside an average, which agrees" in {row.why for row in found.rows}


@pytest.mark.slow
def test_the_sums_of_two_programs_in_haiku_count() -> None:
    average = [0.5, 1.5, 2.5]
    one = _averaging("norm", average, hidden=np.full(3, 7, np.float32))
    other = _averaging("norm1", average, hidden=np.full(3, 9, np.float32))
    assert gs.compare(one, other).verdict == "different"
    assert gs.compare(one, _averaging("norm1", [0.5, 1.5, 2.6], hidden=np.zeros(3, np.float32))).verdict == "different"


def _evaluated(
    name: str, *, returned: bool = True, beside: bool = False, factor: float = 1.0, shift: float = 0.0
) -> Dump:
    """A network in evaluation, which reads its statistics, and may return them as they are or others."""

    def loss(variables: Any, batch: Any) -> Any:
        with jax.named_scope(name):
            y = (batch @ variables["params"][name]["kernel"] - variables["stats"][name]["mean"][None]) * factor
        state = jax.tree.map(lambda value: value + shift, variables["stats"]) if shift else variables["stats"]
        return (y**2).mean(), ({"stats": state} if returned else {}) | ({"scores": y} if beside else {})

    state = {name: {"mean": np.array([0.5, 1.5, 2.5], np.float32)}}
    return gs.capture(loss, {"params": {name: {"kernel": KERNEL}}, "stats": state}, X, origins=False)


@pytest.mark.slow
def test_statistics_that_one_program_returns_unchanged_and_the_other_keeps_do_not_count() -> None:
    one, why = _evaluated("norm"), "state that is returned as it was before the step, and is compared"
    for other in (_evaluated("bn", returned=False), _evaluated("norm", returned=False)):
        for found in (gs.compare(one, other), gs.compare(other, one)):
            assert found.verdict == "same", found.sentence
            assert [row.why for row in found.rows if row.family == "aux"] == [why]
    wrong = gs.compare(one, _evaluated("bn", returned=False, factor=1.1))
    assert (wrong.verdict, "only in" in wrong.sentence) == ("different", False), wrong.sentence


@pytest.mark.slow
def test_statistics_that_one_program_updates_or_lost_among_its_outputs_count() -> None:
    updating, other = _evaluated("norm", shift=0.1), _evaluated("bn", returned=False)
    assert gs.compare(updating, other).verdict == "different"
    one, lost = _evaluated("norm", beside=True), _evaluated("norm", beside=True, returned=False)
    assert gs.compare(one, lost).verdict == "different"
