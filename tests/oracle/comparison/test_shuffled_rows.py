"""Kernels whose rows or columns are in another order: packed ones, and those of a layer that reads pairs."""

from __future__ import annotations

from functools import cache
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.api.reading import Dump
from gradscope.arrays.blocks import Array
from gradscope.comparison.layout.recipe_steps import Reorder
from gradscope.comparison.layout.recipes import Recipe
from gradscope.comparison.pairing.inference.shuffled_blocks import reordered_rows, shuffled_rows
from tests.support.sampled import sampled

_draw = np.random.default_rng(53).normal
HEADS, EACH, WIDTH, HIDDEN = 2, 4, 6, 10
KERNELS = {name: (_draw(size=(WIDTH, HEADS * EACH)) / 2).astype(np.float32) for name in "qkv"}
OUT = (_draw(size=(HEADS * EACH, WIDTH)) / 2).astype(np.float32)
FIELDS = 5
PAIRS = (_draw(size=(WIDTH + FIELDS * (FIELDS - 1) // 2, 3)) / 2).astype(np.float32)
GATED = {name: (_draw(size=(WIDTH, HIDDEN)) / 2).astype(np.float32) for name in ("gate", "up")}
TOKENS = _draw(size=(2, 5, WIDTH)).astype(np.float32)

Packing = Literal["", "joined", "stacked"]


def _in_halves(kernel: Array) -> Array:
    """The columns of a kernel with the first features of all pairs of a head in front of the second ones."""
    return kernel.reshape(WIDTH, HEADS, EACH // 2, 2).swapaxes(2, 3).reshape(kernel.shape)


@cache
def _attention(packing: Packing, names: str = "kv", *, masked: bool = False) -> Dump:
    """An attention without positions; a port packs some projections, and has queries and keys in halves.

    Args:
        packing: How the port packs them; "" for the program that is ported.
        names: The projections that it packs.
        masked: Whether it attends to nothing that comes later.
    """
    own = {name: _in_halves(each) if packing and name in "qk" else each for name, each in KERNELS.items()}
    parts = [own[name] for name in names]
    if packing:
        own = {name: each for name, each in own.items() if name not in names}
        own["packed"] = np.concatenate(parts, 1) if packing == "joined" else np.stack(parts)

    def loss(weights: Any, x: Any) -> Any:
        values: dict[str, Any] = {}
        for name, kernel in weights["attention"].items():
            with jax.named_scope(name):
                y = jnp.einsum("bti,jio->jbto" if kernel.ndim == 3 else "bti,io->bto", x, kernel)
            if name == "packed":
                values |= dict(zip(names, jnp.split(y, len(names), -1) if packing == "joined" else y, strict=True))
            else:
                values[name] = y
        q, k, v = (values[name].reshape(2, 5, HEADS, EACH) for name in "qkv")
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k)
        scores = jnp.where(jnp.tri(5, dtype=bool)[None, None], scores, -1e9) if masked else scores
        with jax.named_scope("out"):
            y = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v).reshape(2, 5, -1) @ weights["out"]
        return jnp.square(y).mean()

    return gs.capture(loss, {"attention": own, "out": OUT}, TOKENS, origins=False)


@sampled("packing", ["joined", "stacked"])
@pytest.mark.parametrize("names", ["kv", "qkv"])
def test_packed_projections_of_which_some_have_their_halves_in_another_order(packing: Packing, names: str) -> None:
    reference, port = _attention(""), _attention(packing, names)
    for one, other in ((reference, port), (port, reference)):
        found = gs.compare(one, other)
        assert found.verdict == "same", found.sentence
        assert all(row.compared for row in found.rows)
    wrong = gs.compare(reference, _attention(packing, names, masked=True))
    assert wrong.sentence.startswith("Forward first differs at `out`"), wrong.sentence


@cache
def _gated(*, packed: bool, exchanged: bool = False) -> Dump:
    """A gated layer, whose two kernels a port has side by side, column by column."""

    def loss(weights: Any, x: Any) -> Any:
        if packed:
            with jax.named_scope("wi"):
                y = x @ weights["wi"]
            gate, up = y[..., ::2], y[..., 1::2]
        else:
            with jax.named_scope("gate"):
                gate = x @ weights["gate"]
            with jax.named_scope("up"):
                up = x @ weights["up"]
        gate, up = (up, gate) if exchanged else (gate, up)
        with jax.named_scope("product"):
            y = jax.nn.silu(gate) * up
        return jnp.square(y).mean()

    joined = {"wi": np.stack([GATED["gate"], GATED["up"]], -1).reshape(WIDTH, -1)}
    return gs.capture(loss, joined if packed else GATED, TOKENS, origins=False)


def test_two_kernels_may_be_side_by_side_column_by_column() -> None:
    for one, other in ((False, True), (True, False)):
        found = gs.compare(_gated(packed=one), _gated(packed=other))
        assert found.verdict == "same", found.sentence
        assert all(row.compared for row in found.rows)
    wrong = gs.compare(_gated(packed=False), _gated(packed=True, exchanged=True))
    assert wrong.sentence.startswith("Forward first differs at `product`"), wrong.sentence


@cache
def _pairwise(*, upper: bool = False, moved: bool = False, joined: bool = False, cut: bool = False) -> Dump:
    """A dense layer of a vector and of the products of pairs of features, in the order of one triangle or the other.

    Args:
        upper: Whether the pairs are read row by row of the upper triangle, not of the lower one.
        moved: Whether the rows of the kernel are in that order.
        joined: Whether a layer of its own joins what the dense layer reads.
        cut: Whether no gradient flows through the products.
    """
    lower, other = np.tril_indices(FIELDS, -1), np.triu_indices(FIELDS, 1)
    places = [list(zip(*lower[::-1], strict=True)).index(pair) for pair in zip(*other, strict=True)]
    kernel = np.concatenate([PAIRS[:WIDTH], PAIRS[WIDTH:][places]]) if moved else PAIRS

    def loss(weights: Any, x: Any) -> Any:
        one, two = other if upper else lower
        with jax.named_scope("embed"):
            x = x @ weights["embed"]
        products = jnp.einsum("bti,bsi->bts", x, x)[:, one, two]
        products = jax.lax.stop_gradient(products) if cut else products
        if joined:
            with jax.named_scope("joined"):
                read = jnp.concatenate([x[:, 0], products], -1)
        else:
            read = jnp.concatenate([x[:, 0], products], -1)
        with jax.named_scope("dense"):
            y = read @ weights["dense"]
        return jnp.square(y).mean()

    return gs.capture(loss, {"embed": KERNELS["q"][:, :WIDTH], "dense": kernel}, TOKENS[:, :FIELDS], origins=False)


@pytest.mark.parametrize("joined", [False, True])
def test_rows_of_a_kernel_in_the_order_of_what_it_reads_are_the_same(joined: bool) -> None:
    reference, port = _pairwise(joined=joined), _pairwise(joined=joined, upper=True, moved=True)
    found = gs.compare(reference, port)
    assert found.verdict == "same", found.sentence
    assert all(row.compared for row in found.rows)
    cut = gs.compare(reference, _pairwise(joined=joined, upper=True, moved=True, cut=True))
    made = f"made in `{'joined' if joined else 'dense'}` or between `embed` and it"
    assert cut.sentence.startswith("Backward only: forward agrees"), cut.sentence
    assert made in cut.sentence, cut.sentence


@pytest.mark.parametrize("faulty", [{"upper": True}, {"moved": True}])
def test_rows_in_another_order_than_what_is_read_differ(faulty: dict[str, bool]) -> None:
    for joined in (False, True):
        found = gs.compare(_pairwise(joined=joined), _pairwise(joined=joined, **faulty))
        assert found.verdict == "different", found.sentence
        assert found.first_divergence.forward is not None
        assert found.first_divergence.forward.name == ("joined" if joined and "upper" in faulty else "dense")


@pytest.mark.slow
@pytest.mark.parametrize("moved", [False, True])
def test_rows_in_the_order_of_what_a_cell_reads_are_the_same_where_its_output_has_an_axis_more(moved: bool) -> None:
    kernel, start = _draw(size=(7, 3)), _draw(size=(2, 3))
    steps = _draw(size=(5, 2, 4))

    def unrolled(weights: Any, batch: Any) -> Any:
        state, found = batch["start"], []
        for step in batch["steps"]:
            with jax.named_scope("cell"):
                output = jnp.tanh(jnp.concatenate([step, state], -1) @ weights["kernel"])[:, None]
            state = output[:, 0]
            found.append(state)
        return jnp.square(jnp.stack(found) - 0.5).mean()

    def scanned(weights: Any, batch: Any) -> Any:
        def step(state: Any, step: Any) -> Any:
            with jax.named_scope("recurrent"):
                state = jnp.tanh(jnp.concatenate([state, step], -1) @ weights["w"].T)
            return state, state

        return jnp.square(jax.lax.scan(step, batch["start"], batch["steps"])[1] - 0.5).mean()

    batch = {"start": start, "steps": steps}
    rows = np.concatenate([kernel[4:], kernel[:4]]) if moved else kernel
    reference = gs.capture(unrolled, {"kernel": kernel}, batch, origins=False)
    found = gs.compare(reference, gs.capture(scanned, {"w": rows.T.copy()}, batch, origins=False))
    assert bool(found) is moved, found.sentence


def test_rows_that_are_none_or_several_of_the_parts_show_no_order() -> None:
    one, other = _draw(size=(4, 3)), _draw(size=(4, 3))
    packed = np.stack([one, other], 1).reshape(8, 3)
    assert shuffled_rows(packed, {"one": one, "other": other}) == (("one", "other"), (0, 4, 1, 5, 2, 6, 3, 7))
    assert shuffled_rows(packed + 1e-3, {"one": one, "other": other}) is None
    assert shuffled_rows(packed, {"one": one, "other": other, "again": one.copy()}) is None
    assert shuffled_rows(packed[:7], {"one": one, "other": other}) is None


def test_rows_are_those_along_an_axis_that_both_tensors_have() -> None:
    one = _draw(size=(4, 6))
    moved = one[[2, 0, 3, 1]]
    for other in (moved, moved.T):
        (layout,) = reordered_rows(one, other)
        assert np.array_equal(layout.read(other), one)
    for other in (moved.reshape(24), moved[None], moved[..., None]):
        assert reordered_rows(one, other) == reordered_rows(other, one) == ()


def test_the_order_of_many_blocks_is_described_by_their_number() -> None:
    few, many = (Recipe(keys=("param/w",), steps=(Reorder(tuple(range(count))[::-1]),)) for count in (3, 300))
    assert few.description() == "reorder [2, 1, 0]"
    assert many.description() == "reorder 300 blocks"
