"""Planted faults: each is found where it was planted, and said for what it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import gradscope as gs
from gradscope.comparison import Comparison
from tests.oracle.isolation import faulty
from tests.oracle.isolation.isolating import isolated, wrong
from tests.support.data import drawn, filled
from tests.support.sampled import sampled

pytestmark = pytest.mark.usefixtures("compiled_in_a_hurry")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a comparison must find.

    Attributes:
        forward: Where the forward pass first differs.
        backward: Where the backward pass first differs.
        says: What the sentence holds.
        likely: What is said of tensors by key.
        alone: The layers that differ when each is run alone, on the reference's parameters in the candidate's layout.
    """

    forward: str | None = None
    backward: str | None = None
    says: str = ""
    likely: tuple[tuple[str, str], ...] = ()
    alone: tuple[str, ...] = ()


HEAD = "head"
SCORES = "attention[1]/scores"
FAULTS = {
    "changed epsilon": Found(forward="norm", backward=HEAD, says="made here", alone=("norm",)),
    "swapped weights": Found(
        forward="up", backward=HEAD, says="different parameters (`",
        likely=(("param/up/w", "has the values of `down/w`"), ("param/down/w", "has the values of `up/w`")),
    ),
    "transposed kernel": Found(
        forward="down", backward=HEAD, says="1 parameter has another layout: `down/w` (transpose [1, 0])",
        alone=("down",),
    ),
    "missing bias": Found(forward="up", backward=HEAD, says="made here", alone=("up",)),
    "wrong custom VJP": Found(
        backward="up", alone=("gate",),
        says="made in `gate`); 6 parameter gradients and 1 input gradient above it follow from that",
    ),
    "stop_gradient": Found(backward="right", says="no gradient arrives in the candidate", alone=("stopped",)),
    "dropout left on": Found(forward="drop", backward=HEAD, says="made here", alone=("drop",)),
    "off-by-one mask": Found(forward=SCORES, backward=HEAD, says="made here", alone=(SCORES,)),
    "bf16 accumulation": Found(forward="down", backward=HEAD, says="made here", alone=("down",)),
    "sign error in a head": Found(forward=SCORES, backward=HEAD, says="made here", alone=(SCORES,)),
    "stale batch statistic": Found(forward="centre", backward=HEAD, says="different state (`"),
    "permuted scan layers": Found(
        forward="attention[0]/scores", backward=HEAD, says="in another layout are read there: `attention/key`",
        # The projections are made outside of the parts.
        alone=tuple(
            f"{before}attention[{at}]/{part}"
            for at in (0, 1)
            for before, part in (("before ", "scores"), ("before ", "mix"), ("", "out"))
        ),
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def reference(compiled_in_a_hurry: None) -> gs.Dump:
    return faulty.capture()


@cache
def captured(fault: str) -> gs.Dump:
    return faulty.capture(fault)


@sampled("fault", FAULTS)
def test_a_planted_fault_is_found_where_it_is(reference: gs.Dump, fault: str) -> None:
    expected, found = FAULTS[fault], gs.compare(reference, captured(fault))
    assert found.verdict == "different"
    first = found.first_divergence
    assert (first.forward.name if first.forward else None, first.backward.name if first.backward else None) == (
        expected.forward, expected.backward,
    )  # fmt: skip
    assert expected.says in found.sentence
    assert first.backward_only is (expected.forward is None)
    likely = {f"{row.family}/{row.name}": row.likely for row in found.rows}
    assert {key: likely[key] for key, _ in expected.likely} == dict(expected.likely)
    # One planted fault is one place where error is made, and everything else follows.
    assert not any(word in found.sentence for word in ("anew", "in addition"))


@pytest.mark.slow
@sampled("fault", FAULTS)
def test_isolated_only_the_faulty_layer_differs(reference: gs.Dump, fault: str) -> None:
    variables, batch, expected = faulty.planted(fault), faulty.batch(), FAULTS[fault]
    found = isolated(reference, captured(fault), faulty.with_fault(fault), variables, batch)
    assert wrong(found) == list(expected.alone)
    assert not found.left_out
    for row in found.different:
        assert row.forward is not None
        assert (row.forward.status == "same") is (expected.forward is None)


@pytest.mark.slow
def test_another_fusion_is_no_difference(reference: gs.Dump) -> None:
    jax.config.update("jax_disable_most_optimizations", False)
    optimised = faulty.capture()
    jax.config.update("jax_disable_most_optimizations", True)
    assert gs.compare(reference, optimised).verdict == "same"


def stepped(path: Path, compiled: Callable[[Any], Any]) -> gs.Dump:
    """What an observed training step saves, compiled in some way or run operation by operation."""

    def loss(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        for name in ("dense1", "dense2"):
            with jax.named_scope(name):
                x = jax.nn.softmax(jnp.tanh(x @ params[name]) * 3)
        return jnp.square(x).mean()

    params = {f"dense{seed}": drawn(seed, 32, 32, scale=0.25) for seed in (1, 2)}
    _, seen = compiled(gs.value_and_grad(loss, observe="tensors"))(params, params["dense1"] * 2)
    gs.save(path, seen)
    return gs.load(path)


@pytest.mark.slow
def test_compiled_with_whatever_flags_a_run_is_the_one_operation_by_operation(tmp_path: Path) -> None:
    eager = stepped(tmp_path / "eager.npz", lambda step: step)
    flags = {"xla_cpu_enable_fast_math": True, "xla_backend_optimization_level": 3}
    jitted = gs.compare(eager, stepped(tmp_path / "jit.npz", jax.jit))
    flagged = gs.compare(eager, stepped(tmp_path / "flags.npz", partial(jax.jit, compiler_options=flags)))
    assert (jitted.verdict, flagged.verdict) == ("same", "same")
    assert not all(row.metrics["bit_equal"] for row in flagged.rows if row.compared)


@cache
def scaled(factor: float, *, reordered: bool = False) -> gs.Dump:
    """A linear model whose loss is a multiple, or whose sum runs in another order."""

    def loss(params: dict[str, jax.Array], batch: dict[str, jax.Array]) -> jax.Array:
        with jax.named_scope("dense"):
            x = batch["x"] @ params["w"]
        with jax.named_scope("loss"):
            x = jnp.square(x)
            return factor * (x[::-1].reshape(5, -1).sum(axis=0).sum() if reordered else x.sum())

    batch = {"x": drawn(2, 40, 6)}
    return gs.capture(loss, {"w": drawn(3, 6, 4)}, batch)


@pytest.fixture(scope="module")
def plain() -> gs.Dump:
    return scaled(1.0)


@pytest.mark.slow
def test_a_factor_is_said_to_be_one(plain: gs.Dump) -> None:
    found: Comparison = gs.compare(plain, scaled(-0.125))
    likely = {row.name: row.likely for row in found.rows if row.family == "param_grad"}
    assert likely == {"w": "is -0.125 times the reference's"}
    assert {row.likely for row in found.rows if row.name == "loss"} == {""}  # any number is a multiple of another


def test_another_order_of_a_sum_is_no_difference(plain: gs.Dump) -> None:
    assert gs.compare(plain, scaled(1.0, reordered=True)).verdict == "same"


@pytest.mark.slow
def test_a_shape_that_differs_is_said_to_be_of_other_axes_where_it_may_be() -> None:
    def loss(params: dict[str, jax.Array], batch: jax.Array) -> jax.Array:
        kernel = params["w"] if params["w"].shape[0] == batch.shape[1] else params["w"].T
        with jax.named_scope("dense"):
            return jnp.square(batch @ kernel).sum()

    batch, one, other = filled(1.0, 2, 3), {"w": drawn(0, 3, 5)}, {"w": drawn(1, 5, 3)}
    found = gs.compare(gs.capture(loss, one, batch), gs.capture(loss, other, batch))
    (likely,) = (row.likely for row in found.rows if (row.family, row.name) == ("param", "w"))
    assert likely.startswith("has the reference's axes in another order")
