"""Names that two programs have for different layers pair nothing, and those of the same layers pair them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.api.reading import Dump

WIDTH = 6
LAYERS = 4


def _drawn(seed: int, *shape: int) -> Any:
    return np.random.default_rng([seed, *shape]).normal(size=shape, scale=0.6).astype(np.float32)


BATCH = {"x": _drawn(1, 5, WIDTH), "y": _drawn(2, 5, WIDTH)}


def _weights(names: Sequence[str]) -> dict[str, Any]:
    return {
        name: {"kernel": _drawn(number, WIDTH, WIDTH), "bias": _drawn(number, 1, WIDTH)}
        for number, name in enumerate(names)
    }


def _captured(names: Sequence[str], *, transposed: str = "", used: Sequence[str] = ()) -> Dump:
    """The dump of a chain of layers of these names, which use the weights of these names."""

    def loss(weights: Any, batch: Any) -> Any:
        x = batch["x"]
        for scope, name in zip(names, used or names, strict=True):
            with jax.named_scope(scope):
                kernel = weights[name]["kernel"]
                x = jnp.tanh(x @ (kernel.T if name == transposed else kernel) + weights[name]["bias"])
        return jnp.square(x - batch["y"]).mean()

    return gs.capture(loss, _weights(names), BATCH, origins=False)


FROM_ZERO = [f"conv{number}" for number in range(LAYERS)]
FROM_ONE = [f"conv{number + 1}" for number in range(LAYERS)]


@pytest.fixture(scope="module")
def from_zero() -> Dump:
    return _captured(FROM_ZERO)


@pytest.mark.slow
def test_layers_with_the_names_of_the_layers_before_them_are_the_same(from_zero: Dump) -> None:
    found = gs.compare(from_zero, _captured(FROM_ONE))
    assert found.verdict == "same", found.sentence


def test_a_fault_is_found_at_its_layer_where_names_are_those_of_other_layers(from_zero: Dump) -> None:
    found = gs.compare(from_zero, _captured(FROM_ONE, transposed="conv3"))
    assert found.sentence.startswith("Forward first differs at `conv2` "), found.sentence


@pytest.mark.slow
def test_kernels_that_are_exchanged_by_mistake_keep_their_names(from_zero: Dump) -> None:
    exchanged = _captured(["conv0", "conv2", "conv1", "conv3"])  # in this order of the weights
    found = gs.compare(from_zero, exchanged)
    assert "start from different parameters (`conv1/bias`, `conv1/kernel`" in found.sentence


def test_layers_that_use_each_others_parameters_by_mistake_keep_their_names() -> None:
    names = ["stem", "left", "right", "head"]
    found = gs.compare(_captured(names), _captured(names, used=["stem", "right", "left", "head"]))
    rows = {f"{row.family}/{row.name}": row for row in found.rows}
    assert rows["activation/left"].matched_by == rows["activation/right"].matched_by == "name"
    assert found.sentence.startswith("Forward first differs at `left` "), found.sentence


@cache
def _blocks(block: str, dense: str, *, transposed: bool = False) -> Dump:
    """The dump of a block and the dense layer behind it, under two names."""

    def loss(weights: Any, batch: Any) -> Any:
        with jax.named_scope(block):
            x = batch["x"]
            for part in ("first", "second"):
                with jax.named_scope(part):
                    x = jnp.tanh(x @ weights[block][part]["kernel"] + weights[block][part]["bias"])
        with jax.named_scope(dense):
            kernel = weights[dense]["kernel"]
            x = jnp.tanh(x @ (kernel.T if transposed else kernel) + weights[dense]["bias"])
        return jnp.square(x - batch["y"]).mean()

    first, second, last = _weights(["first", "second", "last"]).values()
    return gs.capture(loss, {block: {"first": first, "second": second}, dense: last}, BATCH, origins=False)


@pytest.mark.slow
def test_a_name_that_is_a_block_in_one_program_and_a_layer_in_the_other_pairs_neither() -> None:
    reference = _blocks("down", "downsample")
    found = gs.compare(reference, _blocks("encode", "down"))
    assert found.verdict == "same", [(row.family, row.name, row.why) for row in found.rows if row.counts]
    faulty = gs.compare(reference, _blocks("encode", "down", transposed=True))
    assert faulty.sentence.startswith("Forward first differs at `downsample` "), faulty.sentence


@cache
def _repeated(*, scanned: bool) -> Dump:
    """The dump of a scope around a scan over blocks, or around as many blocks, the last of which returns its output."""

    def block(x: Any, weights: Any) -> Any:
        with jax.named_scope("fc"):
            return jnp.tanh(x @ weights["kernel"] + weights["bias"]) + x

    def loss(weights: Any, batch: Any) -> Any:
        x = batch["x"]
        with jax.named_scope("net"):
            if scanned:
                with jax.named_scope("blocks"):
                    x, _ = jax.lax.scan(lambda x, own: (block(x, own["fc"]), None), x, weights["blocks"])
                x += 0.0  # a value of the scope's own
            else:
                for number in range(LAYERS):
                    with jax.named_scope(f"blocks_{number}"):
                        x = block(x, weights[f"blocks_{number}"]["fc"])
        return jnp.square(x - batch["y"]).mean()

    names = [f"blocks_{number}" for number in range(LAYERS)]
    layers: dict[str, Any] = {name: {"fc": each} for name, each in _weights(names).items()}
    stacked = {"blocks": jax.tree.map(lambda *each: np.stack(each), *layers.values())}
    return gs.capture(loss, stacked if scanned else layers, BATCH, origins=False)


@pytest.mark.slow
def test_a_scope_that_returns_what_its_last_part_does_has_its_name_in_a_scanned_network() -> None:
    found = gs.compare(_repeated(scanned=True), _repeated(scanned=False))
    assert found.verdict == "same", found.sentence
    assert {row.status for row in found.rows} == {"same"}


@cache
def _encoder(*, scoped: bool, layers: int = 2) -> Dump:
    """The dump of a scope around two layers and a table of its own, or of the same without any scope."""
    parts = ("first", "last") if scoped else ("one", "two")
    table = _drawn(3, WIDTH, 1)
    weights = {"encoder": {"table": table, **dict(zip(parts, _weights(("first", "last")).values(), strict=True))}}

    def encoded(own: Any, x: Any) -> Any:
        bias = (own["table"] * 2.0).reshape(1, WIDTH) * 3.0
        for part in parts[:layers]:
            with jax.named_scope(part) if scoped else nullcontext():
                x = jnp.tanh(x @ own[part]["kernel"] + own[part]["bias"] + bias)
        return x

    def loss(weights: Any, batch: Any) -> Any:
        with jax.named_scope("encoder") if scoped else nullcontext():
            x = encoded(weights["encoder"], batch["x"])
        return jnp.square(x - batch["y"]).mean()

    return gs.capture(loss, weights, BATCH, origins=False)


@pytest.mark.slow
def test_a_scope_is_no_pair_with_a_layer_that_has_its_name_from_one_of_its_parameters() -> None:
    reference = _encoder(scoped=True)
    found = gs.compare(reference, _encoder(scoped=False))
    assert found.verdict == "same", found.sentence
    without_last = gs.compare(reference, _encoder(scoped=False, layers=1))
    assert without_last.verdict == "different"
    assert "the shape is" not in without_last.sentence, without_last.sentence


@cache
def _called_after_parameters(*, scoped: bool, factor: float = 1.0) -> Dump:
    """The dump of a block and a head, in scopes or not; a layer without one has the name of its parameters' scope."""
    block = {"first": _drawn(0, WIDTH, 2 * WIDTH), "last": _drawn(1, 2 * WIDTH, WIDTH)}

    def loss(weights: Any, batch: Any) -> Any:
        def scope(name: str) -> Any:
            return jax.named_scope(name) if scoped else nullcontext()

        with scope("block"):
            with scope("first"):
                x = jnp.tanh(batch["x"] @ weights["block"]["first"]) * factor
            with scope("last"):
                x = x @ weights["block"]["last"]
            x = jnp.tanh(x)
        with scope("head"):
            x @= weights["head"]
        return jnp.square(x - batch["y"]).mean()

    return gs.capture(loss, {"block": block, "head": _drawn(2, WIDTH, WIDTH)}, BATCH, origins=False)


@pytest.mark.slow
def test_the_name_of_a_block_is_not_that_of_its_first_product_which_is_called_after_its_parameters() -> None:
    reference = _called_after_parameters(scoped=True)
    found = gs.compare(reference, _called_after_parameters(scoped=False))
    assert found.verdict == "same", found.sentence
    faulty = gs.compare(reference, _called_after_parameters(scoped=False, factor=1.1))
    assert "`block`" not in faulty.sentence.partition(";")[0], faulty.sentence
    assert not any(row.name == row.counterpart == "block" for row in faulty.rows)


@cache
def _cell(*, cell_first: bool, forget: float = 0.0) -> Dump:
    """The dump of a recurrent network of one gate, whose loop carries `(h, c)` or `(c, h)`."""

    def step(weights: Any, carried: Any, x: Any) -> Any:
        h, c = carried[::-1] if cell_first else carried
        z = x @ weights["kernel"] + h @ weights["state"]
        c = jax.nn.sigmoid(z + forget) * c + jnp.tanh(z)
        h = jnp.tanh(c)
        return ((c, h) if cell_first else (h, c)), None

    def loss(weights: Any, batch: Any) -> Any:
        start = jnp.zeros((2, WIDTH)), jnp.zeros((2, WIDTH))
        with jax.named_scope("cell"):
            carried, _ = jax.lax.scan(lambda carried, x: step(weights["cell"], carried, x), start, batch)
        h, c = carried[::-1] if cell_first else carried
        return jnp.square(h).mean() + c.sum()

    weights = {"cell": {"kernel": _drawn(4, WIDTH, WIDTH), "state": _drawn(5, WIDTH, WIDTH)}}
    return gs.capture(loss, weights, _drawn(6, 3, 2, WIDTH), origins=False)


@pytest.mark.slow
def test_outputs_of_a_loop_that_carries_its_values_in_another_order_are_the_same() -> None:
    found = gs.compare(_cell(cell_first=False), _cell(cell_first=True))
    assert found.verdict == "same", found.sentence
    wrong = gs.compare(_cell(cell_first=False), _cell(cell_first=True, forget=1.0))
    assert wrong.first_divergence.forward is not None, wrong.sentence
    assert wrong.first_divergence.forward.name.startswith("cell[1]"), wrong.sentence


def _of_conv_and_norm(names: dict[str, str], *, factor: float = 1.0) -> Dump:
    """Two layers, the second of which scales and shifts as a norm does, and a head."""
    first, second, head = names

    def loss(weights: Any, batch: Any) -> Any:
        def own(name: str) -> Any:
            found = weights
            for part in name.split("/"):
                found = found[part]
            return found

        with jax.named_scope(first):
            x = batch["x"] @ own(first)["kernel"] + own(first)["bias"][None]
        with jax.named_scope(second):
            x = x * own(second)["scale"][None] * factor + own(second)["bias"][None]
        with jax.named_scope(head):
            x = jnp.tanh(x) @ own(head)["kernel"]
        return jnp.square(x - batch["y"]).mean()

    weights: dict[str, Any] = {}
    for number, (name, kinds) in enumerate(names.items()):
        tensors = {
            kind: _drawn(20 + number, *((WIDTH, WIDTH) if kind == "kernel" else (WIDTH,))) for kind in kinds.split()
        }
        scope, _, inner = name.partition("/")
        weights.setdefault(scope, {}).update({inner: tensors} if inner else tensors)
    return gs.capture(loss, weights, BATCH, origins=False)


@pytest.mark.parametrize("factor", [1.0, 1.1])
def test_the_second_layer_of_a_sequence_is_not_the_layer_that_has_its_name_and_number(factor: float) -> None:
    reference = _of_conv_and_norm({"conv/0": "kernel bias", "conv/1": "scale bias", "head": "kernel"})
    port = {"conv1": "kernel bias", "bn1": "scale bias", "head": "kernel"}
    found = gs.compare(reference, _of_conv_and_norm(port, factor=factor))
    assert "start from different parameters" not in found.sentence
    if factor == 1:
        assert found.verdict == "same", found.sentence
    else:
        assert found.sentence.startswith("Forward first differs at `conv/1` "), found.sentence


@cache
def _with_loss(*, inside: bool, fault: float = 1.0, stats_only: bool = False) -> Dump:
    """Two layers, and a loss that is inside the scope of the last one or behind it."""

    def loss(weights: Any, batch: Any) -> Any:
        with jax.named_scope("first"):
            x = jnp.tanh(batch["x"] @ weights["first"])
        with jax.named_scope("last"):
            x = jnp.sin(x @ weights["last"] * fault)
            if inside:
                return jnp.square(x - batch["y"]).mean()
        return jnp.square(x - batch["y"]).mean()

    weights = {"first": _drawn(20, WIDTH, WIDTH), "last": _drawn(21, WIDTH, WIDTH)}
    return gs.capture(loss, weights, BATCH, stats_only=stats_only)


@pytest.mark.slow
@pytest.mark.parametrize("stats_only", [False, True])
def test_a_loss_inside_the_last_layer_of_one_program_is_no_difference(stats_only: bool) -> None:
    behind, inside = (_with_loss(inside=each, stats_only=stats_only) for each in (False, True))
    for one, other in ((behind, inside), (inside, behind)):
        assert gs.compare(one, other).verdict == "same"
        assert "shape" not in gs.compare(one, other).sentence


@pytest.mark.slow
def test_a_fault_in_such_a_layer_is_one() -> None:
    for one, other in ((False, True), (True, False)):
        found = gs.compare(_with_loss(inside=one), _with_loss(inside=other, fault=1.01))
        assert found.verdict == "different"
        assert "last" in found.sentence
        assert "shape" not in found.sentence
