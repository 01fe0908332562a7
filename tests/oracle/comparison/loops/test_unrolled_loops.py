"""A program with a scan and the same program with the iterations written out are the same, without any option."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import pytest
from jax import Array, lax

import gradscope as gs
from gradscope.comparison import CompareOptions, Comparison, ComparisonRow, compare
from gradscope.comparison.pairing.map_file import read_map, write_map
from gradscope.dump.sources.memory_dump import MemoryDump
from gradscope.naming import Selection
from tests.oracle.isolation.isolating import isolated
from tests.support.data import drawn, filled
from tests.support.sampled import sampled

pytestmark = pytest.mark.usefixtures("compiled_in_a_hurry")

#: Returns the next carry, and an output to stack, from a carry and a slice.
Body = Callable[[Array, Array], tuple[Array, Any]]
#: Runs a body under a scope.
Loop = Callable[[str, Body, Array, Array], tuple[Array, Any]]

ITERATIONS = 3


def scanned(scope: str, body: Body, x: Array, xs: Array) -> tuple[Array, Any]:
    with jax.named_scope(scope):
        return lax.scan(body, x, xs)


def backwards(scope: str, body: Body, x: Array, xs: Array) -> tuple[Array, Any]:
    with jax.named_scope(scope):
        return lax.scan(body, x, xs, reverse=True)


def unrolled(scope: str, body: Body, x: Array, xs: Array, *, reverse: bool = False) -> tuple[Array, Any]:
    made: dict[int, Any] = {}
    for number in reversed(range(ITERATIONS)) if reverse else range(ITERATIONS):
        with jax.named_scope(f"{scope}[{number}]"):
            x, made[number] = body(x, xs[number])
    return x, jax.tree.map(lambda *each: jnp.stack(each), *(made[number] for number in range(ITERATIONS)))


def unrolled_backwards(scope: str, body: Body, x: Array, xs: Array) -> tuple[Array, Any]:
    return unrolled(scope, body, x, xs, reverse=True)


def in_scopes(scope: str, body: Body, x: Array, xs: Array, *, numbered: bool) -> tuple[Array, Any]:
    """The scope of the loop is opened for each iteration, around a scope of its number or without one."""
    made: list[Any] = []
    for number in range(ITERATIONS):
        with jax.named_scope(scope), jax.named_scope(f"{number}") if numbered else nullcontext():
            x, own = body(x, xs[number])
            made.append(own)
    return x, jax.tree.map(lambda *each: jnp.stack(each), *made)


def dense(x: Array, w: Array, *, epsilon: float = 0.0) -> Array:
    with jax.named_scope("dense"):
        x = x @ w
    with jax.named_scope("act"):
        return jnp.tanh(x) * (1 + epsilon)


def carry(loop: Loop, w: Array, x: Array) -> Array:
    return loop("cell", lambda x, w: (dense(x, w), None), x, w)[0]


def stacked(loop: Loop, w: Array, x: Array, *, read: Callable[[Array], Array] = lambda x: x) -> Array:
    """Without `read`, the output of an iteration is the next carry and also stacked: its gradient is a sum of two."""

    def body(x: Array, w: Array) -> tuple[Array, Array]:
        x = dense(x, w)
        return x, read(x)

    x, every = loop("cell", body, x, w)
    return x + (every**3).sum(axis=0)


def sine(x: Array) -> Array:
    with jax.named_scope("read"):
        return jnp.sin(x)


def scoped(scope: str, body: Body, x: Array, xs: Array, *, loop: Loop) -> tuple[Array, Any]:
    """A scope around a scan returns the output of the scan; unrolled, the output of the last iteration."""
    with jax.named_scope("net"):
        return loop(scope, body, x, xs)


def nested(loop: Loop, w: Array, x: Array) -> Array:
    def body(x: Array, w: Array) -> tuple[Array, None]:
        return loop("inner", lambda x, w: (dense(x, w), None), x, jnp.stack([w] * ITERATIONS))[0], None

    return loop("cell", body, x, w)[0]


NETWORKS = {
    "carry": carry, "carry and stack": partial(stacked, read=sine), "stacked carry": stacked, "nested": nested,
    "scoped": lambda loop, w, x: stacked(partial(scoped, loop=loop), w, x),
}  # fmt: skip
WAYS = {"forwards": (scanned, unrolled), "backwards": (backwards, unrolled_backwards)}


def loss_of(network: Callable[[Loop, Array, Array], Array], loop: Loop) -> Callable[[Any, Any], Array]:
    def loss(variables: dict[str, Array], batch: dict[str, Array]) -> Array:
        x = network(loop, variables["w"], batch["x"])
        with jax.named_scope("head"):
            return jnp.square(x).mean()

    return loss


def arguments() -> tuple[dict[str, Array], dict[str, Array]]:
    return {"w": drawn(1, ITERATIONS, 4, 4)}, {"x": filled(1 / 3, 2, 4)}


@cache
def captured(network: str, loop: Loop, *, ops: bool = False) -> gs.Dump:
    return gs.capture(loss_of(NETWORKS[network], loop), *arguments(), ops=ops)


def by_key(found: Comparison) -> dict[str, ComparisonRow]:
    return {f"{row.family}/{row.name}": row for row in found.rows}


def loop_outputs(found: Comparison) -> dict[str, str]:
    return {key: row.counterpart for key, row in by_key(found).items() if row.matched_by == "iterations"}


@sampled(
    ("network", "way"),
    [
        *((network, "forwards") for network in ("carry", "carry and stack", "stacked carry", "nested")),
        ("carry and stack", "backwards"),
    ],
)
def test_a_scanned_and_an_unrolled_loop_are_the_same_whichever_is_the_reference(network: str, way: str) -> None:
    loop, flat = (captured(network, each) for each in WAYS[way])
    for ref, cand in ((loop, flat), (flat, loop)):
        found = gs.compare(ref, cand)
        assert found.verdict == "same"
        rows = by_key(found)
        output = rows["activation/cell" if network in ("carry", "nested") else "activation/cell.0"]
        last = "cell[0]" if way == "backwards" else f"cell[{ITERATIONS - 1}]"
        assert (output.status, output.matched_by) == ("same", "iterations")
        assert output.counterpart.startswith(last)


@sampled("network", ["carry", "carry and stack"])
@pytest.mark.parametrize("numbered", [True, False])
def test_a_scope_that_each_iteration_opens_is_not_taken_for_that_of_the_loop(network: str, numbered: bool) -> None:
    """The first one's output and that of the loop, which is the last one's, have one name then."""
    loop = captured(network, scanned)
    flat = gs.capture(loss_of(NETWORKS[network], partial(in_scopes, numbered=numbered)), *arguments())
    first = "cell/0/act" if numbered else "cell/act"
    for ref, cand in ((loop, flat), (flat, loop)):
        found = gs.compare(ref, cand)
        assert found.verdict == "same"
        rows = by_key(found)
        assert rows[f"activation/{'cell[0]/act' if ref is loop else first}"].counterpart == (
            first if ref is loop else "cell[0]/act"
        )


@pytest.mark.parametrize("epsilon", [0.0, 0.01])
def test_a_layer_that_is_called_in_the_loop_and_behind_it_is_not_taken_for_another_call(epsilon: float) -> None:
    """Without a number, it is the first call where the loop is written out, and the last where it is not."""

    def called_again(loop: Any, w: Array, x: Array, epsilon: float = 0.0) -> Array:
        def body(x: Array, w: Array) -> tuple[Array, None]:
            return dense(x, w, epsilon=epsilon), None

        return dense(loop(body, x, w), w[0])

    def in_scan(body: Body, x: Array, xs: Array) -> Array:
        return lax.scan(body, x, xs)[0]

    def written_out(body: Body, x: Array, xs: Array) -> Array:
        for each in xs:
            x, _ = body(x, each)
        return x

    flat, loop = (
        gs.capture(loss_of(partial(called_again, epsilon=other), cast("Any", each)), *arguments())
        for each, other in ((written_out, 0.0), (in_scan, epsilon))
    )
    for ref, cand in ((loop, flat), (flat, loop)):
        found = gs.compare(ref, cand)
        assert bool(found) is (epsilon == 0)
        if epsilon:
            assert found.first_divergence.forward is not None
            assert found.first_divergence.forward.name == ("act[0]" if ref is loop else "act")


def test_a_stack_is_compared_with_the_outputs_of_all_iterations() -> None:
    loop, flat = captured("carry and stack", scanned), captured("carry and stack", unrolled)
    for ref, cand in ((loop, flat), (flat, loop)):
        for family in ("activation", "activation_grad"):
            row = by_key(gs.compare(ref, cand))[f"{family}/cell.1"]
            assert (row.status, row.made_by) == ("same", "stack 0")
            assert row.counterpart == "cell[0]/read, cell[1]/read, cell[2]/read"


def test_a_partial_gradient_is_not_compared_with_the_sum() -> None:
    found = by_key(gs.compare(captured("stacked carry", scanned), captured("stacked carry", unrolled)))
    for name in ("cell.0", "cell.1"):
        row = found[f"activation_grad/{name}"]
        assert (row.status, row.counts) == ("missing", False)
        assert row.why.startswith("a part of what arrives at activation_grad/cell[")
    assert found[f"activation_grad/cell[{ITERATIONS - 1}]/act"].status == "same"


def test_a_partial_gradient_is_not_compared_with_the_sum_under_the_name_of_a_scope_around_either() -> None:
    loop, flat = captured("scoped", scanned), captured("scoped", unrolled)
    for ref, cand in ((loop, flat), (flat, loop)):
        found = gs.compare(ref, cand)
        assert found.verdict == "same"
        rows = by_key(found)
        assert rows["activation/net.0"].matched_by == ("iterations" if ref is loop else "name")
        assert rows["activation_grad/net.0"].counts is (ref is flat)


@sampled("network", ["carry", "nested"])
def test_among_operations_a_slice_of_a_stack_is_compared_with_the_stack(network: str) -> None:
    loop, flat = captured(network, scanned, ops=True), captured(network, unrolled, ops=True)
    for ref, cand in ((loop, flat), (flat, loop)):
        found = gs.compare(ref, cand)
        rows = {key: row for key, row in by_key(found).items() if row.name == "cell[1]/squeeze"}
        assert {key: (row.status, row.counterpart, row.made_by) for key, row in rows.items()} == {
            "activation/cell[1]/squeeze": ("same", "param/w", "unstack 0"),
            "activation_grad/cell[1]/squeeze": ("same", "param_grad/w", "unstack 0"),
        }
        assert rows["activation/cell[1]/squeeze"].matched_by == "iterations"
        assert found.verdict == "same"


def test_a_difference_in_an_iteration_differs_in_the_loop_output_and_begins_in_the_iteration() -> None:
    def off(loop: Loop, w: Array, x: Array) -> Array:
        return loop("cell", lambda x, w: (dense(x, w, epsilon=0.01), None), x, w)[0]

    faulty = gs.capture(loss_of(off, scanned), *arguments())
    for ref, cand in ((captured("carry", unrolled), faulty), (faulty, captured("carry", unrolled))):
        found = gs.compare(ref, cand)
        assert found.first_divergence.forward is not None
        assert found.first_divergence.forward.name == "cell[0]/act"
        assert by_key(found)["activation/cell"].status == "different"
        options = CompareOptions(selection=Selection.parse(["activation/cell"]))
        only_loop = compare(ref.source, cand.source, options=options)
        assert "Forward first differs at `cell`" in only_loop.sentence


def test_an_operation_after_the_iterations_is_missing_in_the_program_without_it() -> None:
    """In the scope of the loop, so that the output of the loop is not that of the last iteration."""

    def scaled(loop: Loop, w: Array, x: Array) -> Array:
        if loop is unrolled:
            return carry(loop, w, x)
        with jax.named_scope("cell"):
            return 2 * lax.scan(lambda x, w: (dense(x, w), None), x, w)[0]

    loop, flat = (gs.capture(loss_of(scaled, each), *arguments()) for each in (scanned, unrolled))
    for ref, cand, status in ((loop, flat, "missing"), (flat, loop, "extra")):
        row = by_key(gs.compare(ref, cand))["activation/cell"]
        assert (row.status, row.counts, row.matched_by) == (status, True, None)


def test_a_layer_that_returns_its_input_is_missing_in_the_program_without_it() -> None:
    def passing(network: Callable[[Array], Array]) -> gs.Dump:
        def loss(variables: dict[str, Array], batch: dict[str, Array]) -> Array:
            with jax.named_scope("cell"):
                x = jnp.exp(batch["x"] * variables["w"].sum())
            return network(x).sum()

        return gs.capture(loss, *arguments())

    def rectified(x: Array) -> Array:
        with jax.named_scope("cell[0]"):
            return jax.nn.relu(x)

    found = gs.compare(passing(rectified), passing(lambda x: x))
    assert by_key(found)["activation/cell[0]"].status == "missing"
    assert found.verdict == "different"


def test_without_an_iteration_the_loop_output_is_missing_too() -> None:
    loop, flat = captured("carry", scanned), captured("carry", unrolled)
    last = f"cell[{ITERATIONS - 1}]"
    kept = tuple(entry for entry in flat.source.manifest.entries if not entry.name.startswith(last))
    arrays = {f"{entry.family}/{entry.name}": flat[f"{entry.family}/{entry.name}"] for entry in kept}
    fewer = MemoryDump(replace(flat.source.manifest, entries=kept), arrays)
    rows = by_key(compare(loop.source, fewer))
    assert {rows[f"activation/{name}"].status for name in ("cell", last, f"{last}/act")} == {"missing"}
    assert rows["activation/cell"].counts


@pytest.mark.parametrize("network", ["carry", "stacked carry"])
def test_without_tensors_a_hash_proves_a_carry_and_nothing_a_stack(network: str) -> None:
    loop, flat = (MemoryDump(captured(network, each).source.manifest, {}) for each in (scanned, unrolled))
    found = compare(loop, flat)
    carried = "cell" if network == "carry" else "cell.0"
    assert loop_outputs(found)[f"activation/{carried}"] == f"cell[{ITERATIONS - 1}]/act"
    assert found.verdict == ("same" if network == "carry" else "different")


def test_a_written_map_has_no_rules_for_loop_outputs(tmp_path: Path) -> None:
    loop, flat = captured("carry and stack", scanned).source, captured("carry and stack", unrolled).source
    found = compare(loop, flat)
    write_map(tmp_path / "map.toml", found.matches)
    again = compare(loop, flat, options=CompareOptions(map_rules=read_map(tmp_path / "map.toml")))
    assert again.rows == found.rows
    assert read_map(tmp_path / "map.toml") == ()


def test_a_loop_is_isolated_on_the_outputs_of_the_references_iterations() -> None:
    loss = loss_of(carry, scanned)
    found = isolated(captured("carry", unrolled), captured("carry", scanned), loss, *arguments())
    assert (found.verdict, found.left_out) == ("same", ())
