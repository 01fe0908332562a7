"""Faults planted between two layers are charged to the code there, and not to the layer that reads its result."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array, lax

import gradscope as gs
from gradscope import naming
from gradscope.capturing.isolate.isolate import isolate
from gradscope.capturing.timings import Timings
from gradscope.comparison import CompareOptions
from gradscope.comparison.follow_ups.isolation import LocalRow
from gradscope.comparison.pairing.matching import Dumps
from gradscope.dump.sources.memory_dump import MemoryDump
from gradscope.tracing.loading.model import Model
from tests.oracle.isolation.isolating import isolated, of_losses, wrong
from tests.support.sampled import sampled

pytestmark = pytest.mark.usefixtures("compiled_in_a_hurry")


def tanh_with(factor: float, x: Array) -> Array:
    """A tanh with a derivative rule of its own, times a factor."""

    @jax.custom_vjp
    def tanh(x: Array) -> Array:
        return jnp.tanh(x)

    tanh.defvjp(lambda x: (jnp.tanh(x), jnp.tanh(x)), lambda y, cotangent: (factor * cotangent * (1 - y * y),))
    return tanh(x)


def network(params: Any, batch: Any, *, fault: str = "") -> Array:
    """A dense layer, a block of two with a residual, a loop of two layers, a branch, and a head."""

    def scale(name: str) -> float:
        return 1.02 if fault == name else 1.0

    with jax.named_scope("dense"):
        x = scale("dense") * (batch["x"] @ params["dense"])
    x = jnp.sin(x) if fault == "activation" else jnp.tanh(x)
    x = scale("before block") * (x[:, ::-1] if fault == "order" else x)
    with jax.named_scope("block"):
        with jax.named_scope("norm"):
            y = x - x.mean(-1, keepdims=True)
        with jax.named_scope("up"):
            y = y @ params["up"]
        y = tanh_with(scale("rule"), y)
        with jax.named_scope("down"):
            y = y @ params["down"] + scale("bias") - 1.0
        x = (lax.stop_gradient(x) if fault == "stop" else x) + scale("sum") * y

    def body(x: Array, iteration: Any) -> tuple[Array, None]:
        kernel, number = iteration
        with jax.named_scope("in"):
            y = x @ kernel
        y = tanh_with(scale("loop rule"), y) * scale("loop") * jnp.where(number == 1, scale("one iteration"), 1.0)
        with jax.named_scope("out"):
            return y @ kernel.T, None

    with jax.named_scope("loop"):
        x, _ = lax.scan(body, x, (params["cell"], jnp.arange(3)))

    def taken(x: Array) -> Array:
        with jax.named_scope("one"):
            x = jnp.sin(x)
        x = tanh_with(scale("branch rule"), x)
        with jax.named_scope("other"):
            return jnp.sin(x)

    with jax.named_scope("branch"):
        x = lax.cond(batch["x"].sum() > -1e9, taken, lambda x: x, x)
    with jax.named_scope("head"):
        x = x @ params["head"]
    return jnp.square(x / scale("loss") - 1.0).mean()


ITERATIONS = [f"before loop[{i}]/out" for i in range(3)]
#: Each fault with the places that are wrong and what the code there reads.
FAULTS = {
    "dense": (["dense"], ()),
    "activation": (["before block"], ("dense",)),
    "before block": (["before block"], ("dense",)),
    "order": (["before block"], ("dense",)),
    "rule": (["before block/down"], ("block/up",)),
    "bias": (["block/down"], ()),
    "sum": (["block"], ()),
    "stop": (["block"], ()),
    "loop": (ITERATIONS, ("loop[0]/in",)),
    "loop rule": (ITERATIONS, ("loop[0]/in",)),
    "one iteration": (ITERATIONS[1:2], ("loop[1]/in",)),
    "branch rule": (["before branch/other"], ("branch/one",)),
    "loss": (["(loss)"], ()),
}
BACKWARD = ("rule", "stop", "loop rule", "branch rule", "loss")
SHAPES = {"dense": (3, 4), "up": (4, 4), "down": (4, 4), "cell": (3, 4, 4), "head": (4, 2)}
RANDOM = np.random.default_rng(0)
PARAMS = {name: RANDOM.normal(scale=0.5, size=shape).astype(np.float32) for name, shape in SHAPES.items()}
BATCH = {"x": RANDOM.standard_normal((5, 3), np.float32)}


@cache
def reference() -> gs.Dump:
    return gs.capture(network, PARAMS, BATCH, origins=False)


@cache
def with_fault(fault: str) -> tuple[LocalRow, ...]:
    # The names and shapes of the reference's dump are the candidate's: only its program differs.
    found = isolated(reference(), reference(), partial(network, fault=fault), PARAMS, BATCH)
    assert wrong(found) == FAULTS[fault][0]
    return found.different


@pytest.mark.slow
@sampled("fault", FAULTS)
def test_the_place_of_the_fault_alone_is_blamed(fault: str) -> None:
    first = with_fault(fault)[0]
    assert first.place.reads == FAULTS[fault][1]
    assert {row.forward is None or row.forward.status == "same" for row in with_fault(fault)} == {fault in BACKWARD}


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["before block", "sum", "loop"])
def test_the_line_of_the_fault_is_named(fault: str) -> None:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    (number,) = (
        number
        for number, line in enumerate(lines, 1)
        if f'scale("{fault}") *' in line or f'* scale("{fault}") *' in line
    )
    assert number in [int(line.rpartition(":")[2]) for line in with_fault(fault)[0].place.lines]


def test_the_layer_around_is_named() -> None:
    assert [row.place.inside for row in with_fault("rule")] == ["block"]
    assert [row.place.inside for row in with_fault("loop")] == ["loop[0]", "loop[1]", "loop[2]"]


@pytest.mark.slow
def test_of_several_layers_that_may_return_a_gradient_the_one_that_stops_it_is_named() -> None:
    assert [row.shared_with for row in with_fault("stop")] == [("block/norm",)]


@pytest.mark.slow
def test_the_layer_behind_code_that_rearranges_may_have_made_the_error_and_one_with_right_gradients_has() -> None:
    assert [row.shared_with for row in with_fault("order")] == [("block/norm", "block")]
    assert [row.shared_with for row in with_fault("bias")] == [()]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "blamed"),
    [
        # The code explains the errors of two layers that read its result.
        ("before block", [("before block", ())]),
        ("one iteration", [("loop[1]/out", ("before loop[1]/out",))]),
    ],
)
def test_either_may_be_wrong_where_the_reference_does_not_state_what_layers_read(
    fault: str, blamed: list[tuple[str, tuple[str, ...]]]
) -> None:
    ref = reference().source
    layers = tuple(replace(layer, rms={}, elements={}) for layer in ref.manifest.layers)
    keys = [naming.key_of(entry.family, entry.name) for entry in ref.manifest.entries]
    arrays = {key: ref.array(key) for key in keys if ref.has_tensor(key)}
    silent = MemoryDump(replace(ref.manifest, layers=layers), arrays)
    model = Model.of_values("candidate", partial(network, fault=fault), PARAMS, BATCH)
    found = isolate(model, Dumps(ref=silent, cand=ref), CompareOptions(), Timings())
    assert [(row.name, row.shared_with) for row in found.different] == blamed


def attending(params: Any, batch: Any, *, fault: str = "", reshaping: bool = False) -> Array:
    """A block that may rearrange what it reads before its own layers do."""
    with jax.named_scope("dense"):
        x = batch["x"] @ params["dense"]
    x = jnp.tanh(x)
    x = x.T.T if reshaping else x
    with jax.named_scope("block"):
        y = x[:, ::-1] if fault else x
        with jax.named_scope("up"):
            up = y @ params["up"]
        with jax.named_scope("down"):
            down = y @ params["down"]
        with jax.named_scope("head"):
            x = jnp.sin(up * down) @ params["head"]
    return jnp.square(x - 1.0).mean()


@pytest.mark.slow
@pytest.mark.parametrize(("reshaping", "others"), [(False, ()), (True, ("before block",))])
def test_a_block_that_rearranges_what_it_reads_is_named_and_not_the_code_before_it(
    reshaping: bool, others: tuple[str, ...]
) -> None:
    # A tanh leaves elements where they are; a transpose before the block may be what is wrong as well.
    loss = partial(attending, reshaping=reshaping)
    dump = gs.capture(loss, PARAMS, BATCH, origins=False)
    (found,) = isolated(dump, dump, partial(loss, fault="order"), PARAMS, BATCH).different
    assert (found.name, found.place.inside) == ("before block/up", "block")
    assert found.shared_with == ("block/up", "block/down", *others)
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    assert [lines[int(line.rpartition(":")[2]) - 1].strip() for line in found.place.lines] == [
        "y = x[:, ::-1] if fault else x"
    ]


def masked(params: Any, batch: Any, *, inverted: bool = False) -> Array:
    """Two layers, and a mask of which only the second takes notice."""
    kept = batch["x"][:, :1] > 0
    with jax.named_scope("dense"):
        x = batch["x"] @ params["dense"]
    kept = ~kept if inverted else kept
    x = jnp.where(kept, x, 0.0)
    with jax.named_scope("up"):
        return jnp.square(x @ params["up"]).mean()


@pytest.mark.slow
def test_the_lines_of_a_mask_are_among_those_of_the_code_that_uses_it() -> None:
    dump = gs.capture(masked, PARAMS, BATCH, origins=False)
    (found,) = isolated(dump, dump, partial(masked, inverted=True), PARAMS, BATCH).different
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    assert [lines[int(line.rpartition(":")[2]) - 1].strip() for line in found.place.lines] == [
        'kept = batch["x"][:, :1] > 0',
        "kept = ~kept if inverted else kept",
        "x = jnp.where(kept, x, 0.0)",
    ]


def gated(params: Any, batch: Any, *, fault: str = "", each: bool = True) -> Array:
    """A branch that each example takes or not, or that all take: a dense layer in either arm, with code before it."""

    def arm(name: str) -> Any:
        def run(x: Array) -> Array:
            x = tanh_with(1.05 if fault == f"before {name}" else 1.0, x)
            with jax.named_scope(name):
                return tanh_with(1.05 if fault == name else 1.0, x) @ params[name]

        return run

    def one(x: Array) -> Array:
        with jax.named_scope("dense"):
            x = x @ params["dense"]
        with jax.named_scope("gate"):
            x = lax.cond(jnp.square(x).sum() < 1e9, arm("up"), arm("down"), x)
        with jax.named_scope("head"):
            return x @ params["head"]

    return jnp.square(jax.vmap(one)(batch["x"]) if each else one(batch["x"])).mean()


@pytest.mark.slow
@pytest.mark.parametrize("each", [True, False])
@sampled("fault", ["up", "before up", ""])
def test_a_fault_in_one_arm_of_a_branch_is_that_arms_alone(fault: str, each: bool) -> None:
    loss = partial(gated, each=each)
    found = of_losses(loss, partial(loss, fault=fault), PARAMS, BATCH, origins=False)
    named = fault.replace("up", "gate/up")
    assert [(row.name, row.shared_with) for row in found.different] == ([(named, ())] if fault else [])
