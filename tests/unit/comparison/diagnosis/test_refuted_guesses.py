"""Pairs by place: one that leaves no trace in either program is dropped, one that something bears out is kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.api.reading import Dump
from gradscope.comparison import Comparison
from gradscope.comparison.follow_ups.tensor_diff import element_difference
from tests.support.sampled import sampled

_draw = np.random.default_rng(5).normal
WEIGHTS = {
    "embed": {"table": _draw(size=(7, 4)).astype(np.float32), "positions": _draw(size=(3, 4)).astype(np.float32)},
    "mix": {"w": _draw(size=(4, 4)).astype(np.float32)},
    "gate": {"w": _draw(size=(4, 4)).astype(np.float32)},
    "head": {"w": _draw(size=(4, 2)).astype(np.float32)},
}
SAME = {name: name for name in WEIGHTS}
#: The names of the layers in a port.
PORTED = {"embed": "Lookup_0", "mix": "Dense_0", "gate": "Unit_0", "head": "Dense_1"}
INPUT = _draw(size=(5, 4)).astype(np.float32)
BATCH = {"tokens": np.array([[1, 4, 6], [0, 2, 2]], np.int32)}


def _program(
    names: Mapping[str, str],
    *,
    positions_inside: bool,
    slope: float = 1.0,
    positions: bool = True,
    frozen: bool = False,
) -> Dump:
    """An embedding, a residual sum outside all scopes, and a head."""

    def loss(weights: Any, batch: Any) -> Any:
        own = weights[names["embed"]]
        with jax.named_scope(names["embed"]):
            x = own["table"][batch["tokens"]]
            x = jax.lax.stop_gradient(x) if frozen else x
            x = x + own["positions"][None] if positions_inside else x
        x = x + own["positions"][None] if positions and not positions_inside else x
        with jax.named_scope(names["mix"]):
            y = jnp.tanh(x @ weights[names["mix"]]["w"])
        x = x + y
        with jax.named_scope(names["gate"]):
            x = x * jax.nn.sigmoid(x @ weights[names["gate"]]["w"])
        with jax.named_scope(names["head"]):
            x = jnp.tanh(slope * (x @ weights[names["head"]]["w"]))
        return jnp.square(x).mean()

    own = {names[name]: dict(weights) for name, weights in WEIGHTS.items()}
    return gs.capture(loss, own, BATCH, origins=False)


@pytest.fixture(scope="module")
def reference() -> Dump:
    return _program(SAME, positions_inside=True)


def _first(found: Comparison) -> str:
    assert found.verdict == "different"
    assert found.first_divergence.forward is not None
    return found.first_divergence.forward.name


@pytest.mark.slow
def test_a_parameter_behind_a_stop_gradient_is_used(reference: Dump) -> None:
    found = gs.compare(reference, _program(PORTED, positions_inside=False, frozen=True))
    assert found.verdict == "different"
    assert found.first_divergence.forward is None, found.sentence


@pytest.mark.slow
def test_steps_of_one_computation_are_no_pair_whatever_else_differs(reference: Dump) -> None:
    assert gs.compare(reference, _program(PORTED, positions_inside=False)).verdict == "same"
    found = gs.compare(reference, _program(PORTED, positions_inside=False, slope=1.5))
    assert _first(found) == "head", found.sentence
    assert found.sentence.startswith("Forward first differs at `head`")


@pytest.mark.slow
def test_a_pair_by_place_is_kept_where_what_is_computed_from_it_differs_too(reference: Dump) -> None:
    found = gs.compare(reference, _program(PORTED, positions_inside=False, positions=False))
    assert _first(found) == "embed", found.sentence


@cache
def _routed(*, ported: bool, auxiliary: bool = True) -> Dump:
    """A router that returns logits, which a term of the loss reads, too, or the experts' shares."""

    def loss(weights: Any, x: Any) -> Any:
        with jax.named_scope("Router_0" if ported else "gate"):
            logits = x @ weights["gate"]
            shares = jnp.square(jax.nn.softmax(logits)) if ported else None
        with jax.named_scope("Experts_0" if ported else "experts"):
            shares = jnp.square(jax.nn.softmax(logits)) if shares is None else shares
            mixed = jnp.einsum("be,bi,eio->bo", shares / shares.sum(-1, keepdims=True), x, weights["experts"])
        with jax.named_scope("balance"):
            balance = jnp.square(jax.nn.softmax(logits).mean(0)).sum()
        return jnp.square(mixed).mean() + (balance if auxiliary else 0)

    random = np.random.default_rng(2)
    weights = {"gate": random.normal(size=(4, 3)), "experts": random.normal(size=(3, 4, 4))}
    return gs.capture(loss, {name: np.float32(each) for name, each in weights.items()}, INPUT, origins=False)


@pytest.mark.slow
def test_a_term_that_one_loss_alone_has_bears_out_no_pair_of_which_all_else_agrees() -> None:
    reference = _routed(ported=False)
    assert gs.compare(reference, _routed(ported=True)).verdict == "same"
    found = gs.compare(reference, _routed(ported=True, auxiliary=False))
    assert found.verdict == "different"
    assert "at the loss" in found.sentence, found.sentence


@pytest.mark.slow
def test_a_layer_states_what_its_output_is_computed_from_outside_all_scopes() -> None:
    layers = {layer.path: layer for layer in _program(SAME, positions_inside=False).source.manifest.layers}
    assert layers["embed"].sources == ()  # its input and its parameter say it
    assert set(layers["mix"].sources) == {"activation/embed", "param/embed/positions", "param/mix/w"}
    assert set(layers["gate"].sources) == {
        "activation/embed", "param/embed/positions", "activation/mix", "param/gate/w"
    }  # fmt: skip
    assert layers["head"].sources == ()


@cache
def _named_alike(*, ported: bool, factor: float = 2.0) -> Dump:
    """A layer whose scope a port has around another part of it, under a name that only resembles the reference's."""

    def loss(weights: Any, x: Any) -> Any:
        with jax.named_scope("first" if not ported else "Dense_0"):
            x = x @ weights["a"]
        with jax.named_scope("mix" if not ported else "Mix"):
            x = jnp.sin(factor * x) if not ported else factor * x
        x = jnp.sin(x) if ported else x
        with jax.named_scope("last" if not ported else "Dense_1"):
            x = x @ weights["b"]
        return jnp.square(x).mean()

    weights = {"a": WEIGHTS["mix"]["w"], "b": WEIGHTS["head"]["w"]}
    return gs.capture(loss, weights, INPUT, origins=False)


@pytest.mark.slow
def test_names_that_resemble_each_other_are_no_pair_where_nothing_bears_it_out() -> None:
    found = gs.compare(_named_alike(ported=False), _named_alike(ported=True))
    assert found.verdict == "same", found.sentence
    assert _first(gs.compare(_named_alike(ported=False), _named_alike(ported=True, factor=1.5))) in ("mix", "last")


@pytest.mark.slow
def test_names_that_resemble_each_other_are_no_pair_before_the_loss_either() -> None:
    def program(name: str, *, inside: bool) -> Dump:
        def loss(weights: Any, x: Any) -> Any:
            with jax.named_scope(name):
                x = jnp.sin(x @ weights[name]) if inside else x @ weights[name]
            return jnp.square(x if inside else jnp.sin(x)).mean()

        return gs.capture(loss, {name: WEIGHTS["head"]["w"]}, INPUT, origins=False)

    found = gs.compare(program("Head", inside=False), program("head", inside=True))
    assert found.verdict == "same", found.sentence


def _hidden(*, ported: bool, act: Any = jax.nn.gelu, factor: str = "number", values_only: bool = False) -> Dump:
    """A residual block whose branch ends with a factor of zero, which hides all that is wrong inside."""
    name = "block0" if ported else "Block_0"

    def loss(weights: Any, x: Any) -> Any:
        own = weights[name]
        with jax.named_scope(name):
            with jax.named_scope("up"):
                y = x @ own["up"]
            with jax.named_scope("act"):
                y = act(y)
            with jax.named_scope("down"):
                y = y @ own["down"]
                y = y / jnp.sqrt(jnp.square(y).mean(-1, keepdims=True)) * own["last"] if factor == "scale" else y
            x = x + (own["last"] * y if factor == "number" else y @ own["last"] if factor == "kernel" else y)
        with jax.named_scope("Dense_0" if ported else "head"):
            x = x @ weights["head"]["w"]
        return jnp.square(x).mean()

    shape = {"number": (1, 1), "scale": (1, 4), "kernel": (4, 4)}[factor]
    block = {"up": WEIGHTS["mix"]["w"], "down": WEIGHTS["gate"]["w"], "last": np.zeros(shape, np.float32)}
    families = ("input", "param", "activation") if values_only else None
    return gs.capture(loss, {name: block, "head": WEIGHTS["head"]}, INPUT, families=families, origins=False)


@pytest.mark.slow
@sampled("values_only", [False, True], ids=["with gradients", "without gradients"])
@pytest.mark.parametrize("factor", ["number", "scale", "kernel"])
def test_names_that_resemble_each_other_are_a_pair_where_a_factor_of_zero_hides_the_difference(
    factor: str, values_only: bool
) -> None:
    reference = _hidden(ported=False, factor=factor, values_only=values_only)
    assert gs.compare(reference, _hidden(ported=True, factor=factor, values_only=values_only)).verdict == "same"
    wrong = _hidden(ported=True, act=jax.nn.relu, factor=factor, values_only=values_only)
    assert _first(gs.compare(reference, wrong)) == "Block_0/act"


@cache
def _pooled(*, ported: bool, stopped: bool = False) -> Dump:
    """A rectifier before a maximum of windows, some of them all zero: one of two maxima divides its gradient there."""

    def loss(weights: Any, x: Any) -> Any:
        with jax.named_scope("Dense_0" if ported else "fc"):
            x = x @ weights["w"]
        with jax.named_scope("act" if ported else "relu"):
            x = jax.nn.relu(x)
        if ported:
            halved = 0.5 * x + 0.5 * jax.lax.stop_gradient(x) if stopped else x
            x = halved.reshape(len(x), -1, 2).max(-1)
        else:
            x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2), (1, 2), "VALID")
        return jnp.square(x - 1).mean()

    return gs.capture(loss, {"w": WEIGHTS["mix"]["w"]}, INPUT, origins=False)


@pytest.mark.slow
def test_another_gradient_where_there_is_none_is_no_difference_where_it_has_no_consequence() -> None:
    ref = _pooled(ported=False)
    gradient = np.asarray(ref.source.array("activation_grad/relu"))
    cand = _pooled(ported=True)
    assert not np.array_equal(gradient, cand.source.array("activation_grad/act"))
    found = gs.compare(ref, cand)
    assert found.verdict == "same", found.sentence
    wrong = gs.compare(ref, _pooled(ported=True, stopped=True))
    assert wrong.first_divergence.backward is not None, wrong.sentence
    assert wrong.first_divergence.backward.name == "relu"


@pytest.mark.slow
def test_a_recurrence_that_is_scanned_by_halves_is_the_same() -> None:
    """The states that both programs have pass on other parts of the gradient, and each lies behind another."""
    draw = np.random.default_rng(31).normal
    weights = {name: draw(size=(4, 3)).astype(np.float32) for name in ("decay", "add", "read")}
    batch = {"x": draw(size=(2, 16, 4)).astype(np.float32)}

    def loss(weights: Any, batch: Any, *, by_halves: bool) -> Any:
        decay, add = jax.nn.sigmoid(batch["x"] @ weights["decay"]), batch["x"] @ weights["add"]
        if by_halves:
            pair = jax.lax.associative_scan(lambda a, b: (a[0] * b[0], b[0] * a[1] + b[1]), (decay, add), axis=1)
            states = pair[1]
        else:
            with jax.named_scope("recurrence"):
                steps = (decay.swapaxes(0, 1), add.swapaxes(0, 1))
                states = jax.lax.scan(lambda h, s: (s[0] * h + s[1],) * 2, jnp.zeros((2, 3)), steps)[1].swapaxes(0, 1)
        return jnp.square(states * (batch["x"] @ weights["read"])).mean()

    reference, port = (
        gs.capture(partial(loss, by_halves=by_halves), weights, batch, origins=False) for by_halves in (False, True)
    )
    found = gs.compare(reference, port)
    assert found.verdict == "same", found.sentence


@cache
def _queried(*, port: bool, transposed: bool = False) -> Dump:
    """Attention over many values that are alike, which hides most of what is wrong with its query."""
    draw = np.random.default_rng(5).normal
    kernel, values = draw(size=(6, 6)).astype(np.float32), (5 + draw(size=(40, 6)) / 50).astype(np.float32)

    def loss(weights: Any, batch: Any) -> Any:
        with jax.named_scope("Dense_0" if port else "stem"):
            x = jnp.tanh(batch["x"] @ weights["stem"])
        with jax.named_scope("Dense_1" if port else "query"):
            q = x @ (weights["query"].T if port is not transposed else weights["query"])
        with jax.named_scope("Dense_2" if port else "out"):
            return jnp.square(jax.nn.softmax(jnp.tanh(q) @ values.T) @ values @ weights["out"]).mean()

    own = {"stem": kernel[:, ::-1] / 2, "query": kernel.T if port else kernel, "out": kernel[:, :2]}
    own = {name: np.ascontiguousarray(each) for name, each in own.items()}
    return gs.capture(loss, own, {"x": draw(size=(7, 6)).astype(np.float32)}, origins=False)


@pytest.mark.slow
def test_products_of_one_kernel_are_a_pair_whatever_trace_they_leave() -> None:
    reference = _queried(port=False)
    assert gs.compare(reference, _queried(port=True)).verdict == "same"
    found = gs.compare(reference, _queried(port=True, transposed=True))
    assert found.sentence.startswith("Forward first differs at `query`"), found.sentence


@cache
def _normalised(*, port: bool, epsilon: float = 1e-6) -> Dump:
    """A norm before a dense layer without bias whose rows have the length one, which hides how large the norm's are."""
    draw = np.random.default_rng(6).normal
    own = {name: draw(size=(6, 6)).astype(np.float32) / 3 for name in ("stem", "out")} | {"scale": np.ones((1, 6))}
    names = {"stem": "a", "scale": "b", "out": "c"} if port else {name: name for name in own}

    def loss(weights: Any, batch: Any) -> Any:
        with jax.named_scope(names["stem"]):
            x = batch["x"] @ weights[names["stem"]]
        x = jnp.tanh(x) / 8
        with jax.named_scope(names["scale"]):
            x = x - x.mean(-1, keepdims=True)
            x = x / jnp.sqrt(jnp.square(x).mean(-1, keepdims=True) + epsilon) * weights[names["scale"]]
        with jax.named_scope(names["out"]):
            x = x @ weights[names["out"]]
        x = x / jnp.sqrt(jnp.square(x).sum(-1, keepdims=True))
        return (jax.nn.logsumexp(3 * x @ x.T, axis=-1) - x[:, 0]).mean()

    own = {names[name]: np.asarray(each, np.float32) for name, each in own.items()}
    return gs.capture(loss, own, {"x": draw(size=(7, 6)).astype(np.float32)}, origins=False)


@pytest.mark.slow
def test_what_products_of_one_kernel_are_computed_from_is_a_pair_whatever_trace_it_leaves() -> None:
    reference = _normalised(port=False)
    assert gs.compare(reference, _normalised(port=True)).verdict == "same"
    found = gs.compare(reference, _normalised(port=True, epsilon=1e-2))
    assert found.sentence.startswith("Forward first differs at `scale`"), found.sentence


@cache
def _attenuated(*, ported: bool, stopped: bool = False) -> Dump:
    """A branch of two functions and of little weight, through whose middle half of the gradient may not come back."""

    def loss(weights: Any, x: Any) -> Any:
        with jax.named_scope("Dense_0" if ported else "fc"):
            x = x @ weights["w"]
        with jax.named_scope("Sine_0" if ported else "inner"):
            y = jnp.sin(x)
        y = 0.5 * (y + jax.lax.stop_gradient(y)) if stopped else y
        with jax.named_scope("Tanh_0" if ported else "outer"):
            y = jnp.tanh(y)
        x = x + 1e-4 * y
        with jax.named_scope("Dense_1" if ported else "head"):
            x = x @ weights["v"]
        return jnp.square(x).mean()

    return gs.capture(loss, {"w": WEIGHTS["mix"]["w"], "v": WEIGHTS["head"]["w"]}, INPUT, origins=False)


@pytest.mark.slow
def test_a_gradient_that_is_added_to_a_much_larger_one_has_consequences() -> None:
    reference = _attenuated(ported=False)
    assert gs.compare(reference, _attenuated(ported=True)).verdict == "same"
    found = gs.compare(reference, _attenuated(ported=True, stopped=True))
    assert found.first_divergence.backward is not None, found.sentence
    assert found.first_divergence.backward.name == "inner"
    assert [row.name for row in found.rows if row.status == "different"] == ["inner"], "all others are within tolerance"


def test_a_pair_by_place_is_kept_in_a_selection_where_it_is_kept_in_the_whole() -> None:
    """Behind a large constant the loss shows little of the fault, and what shows more of it is not selected."""

    def program(names: Mapping[str, str], factor: float) -> Dump:
        def loss(weights: Any, x: Any) -> Any:
            for name in ("mix", "gate", "head"):
                with jax.named_scope(names[name]):
                    x = jnp.tanh(x @ weights[names[name]]["w"]) * (factor if name == "gate" else 1.0)
            return 100 + jnp.square(x).mean()

        return gs.capture(loss, {names[name]: WEIGHTS[name] for name in names}, INPUT, origins=False)

    names = {name: name for name in ("mix", "gate", "head")}
    reference, candidate = program(names, 1.0), program({name: PORTED[name] for name in names}, 1.5)
    rows = {row.name: row for row in gs.compare(reference, candidate).rows if row.family == "activation"}
    assert (rows["gate"].matched_by, rows["gate"].counterpart) == ("order", PORTED["gate"])
    (selected,) = gs.compare(reference, candidate, select="activation/gate").rows
    assert (selected.status, selected.metrics["rel_l2"]) == ("different", rows["gate"].metrics["rel_l2"])
    found = element_difference(reference.source, candidate.source, "activation/gate")
    assert found.row.counterpart == PORTED["gate"]


@cache
def _untrained(*, ported: bool, exact: bool = False) -> Dump:
    """A network whose logits are small, as before it is trained, so that the loss hardly depends on its layers."""

    def loss(weights: Any, x: Any) -> Any:
        with jax.named_scope("Dense_0" if ported else "up"):
            x = x @ weights["up"]
        x = jax.nn.gelu(x, approximate=not exact)
        with jax.named_scope("Dense_1" if ported else "down"):
            x = x @ weights["down"]
        with jax.named_scope("RMSNorm_0" if ported else "norm"):
            x = x / jnp.sqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-5)
        with jax.named_scope("Dense_2" if ported else "head"):
            x = x @ weights["head"]
        return -jax.nn.log_softmax(x)[:, 0].mean()

    draw = np.random.default_rng(6).normal
    shapes = {"up": (4, 16), "down": (16, 4), "head": (4, 6)}
    scales = {"up": 0.5, "down": 1.0, "head": 1e-2}
    weights = {name: draw(size=shape, scale=scales[name]).astype(np.float32) for name, shape in shapes.items()}
    return gs.capture(loss, weights, INPUT, origins=False)


def test_a_small_error_that_the_loss_cannot_show_refutes_no_pair() -> None:
    reference = _untrained(ported=False)
    assert gs.compare(reference, _untrained(ported=True)).verdict == "same"
    found = gs.compare(reference, _untrained(ported=True, exact=True))
    assert _first(found) == "down", found.sentence
    assert "which reads the gelu by tanh of `up`, and in the candidate the gelu by erf" in found.sentence


@cache
def _scaled_branch(*, ported: bool, approximate: bool = False) -> Dump:
    """A branch that is scaled before it is added, so that the sum shows little of what is wrong in it."""
    draw = np.random.default_rng(12).normal
    weights = {name: draw(size=(6, 6)).astype(np.float32) for name in ("up", "down")}

    def loss(weights: Any, batch: Any) -> Any:
        x = batch
        with jax.named_scope("block" if ported else "layer"):
            with jax.named_scope("fc1" if ported else "up"):
                hidden = x @ weights["up"]
            hidden = jax.nn.gelu(hidden, approximate=approximate)
            with jax.named_scope("fc2" if ported else "down"):
                hidden = hidden @ weights["down"]
            x = x + 0.02 * hidden
        return jnp.square(x).mean()

    return gs.capture(loss, weights, draw(size=(4, 6)).astype(np.float32), origins=False)


@pytest.mark.slow
def test_a_product_with_a_function_of_what_both_read_is_a_pair_however_small_its_trace() -> None:
    reference = _scaled_branch(ported=False)
    assert gs.compare(reference, _scaled_branch(ported=True)).verdict == "same"
    found = gs.compare(reference, _scaled_branch(ported=True, approximate=True))
    assert found.verdict == "different", found.sentence
    reads = "which reads the gelu by erf of `layer/up`, and in the candidate the gelu by tanh"
    assert found.sentence.startswith("Forward first differs at `layer/down` (")
    assert reads in found.sentence


@cache
def _activated(*, inside: bool, fault: bool = False) -> Dump:
    """Two layers with a function each, inside of their scopes or behind them; only the second has one name in both."""
    draw = np.random.default_rng(13).normal
    weights = {name: draw(size=(6, 6)).astype(np.float32) for name in ("first", "out")}

    def loss(weights: Any, batch: Any) -> Any:
        with jax.named_scope("trunk" if inside else "one"):
            x = batch @ weights["first"]
            x = jax.nn.relu(x) if inside else x
        x = x if inside else jax.nn.relu(x)
        with jax.named_scope("out"):
            x = x @ weights["out"]
            x = jax.nn.sigmoid(x) if inside and not fault else x
        x = jnp.tanh(x) if fault else x if inside else jax.nn.sigmoid(x)
        return jnp.square(x).mean()

    return gs.capture(loss, weights, draw(size=(4, 6)).astype(np.float32), origins=False)


@pytest.mark.slow
def test_a_pair_by_name_behind_a_wrong_guess_may_be_two_steps_of_one_computation() -> None:
    found = gs.compare(_activated(inside=False), _activated(inside=True))
    assert found.verdict == "same", found.sentence
    wrong = gs.compare(_activated(inside=False), _activated(inside=True, fault=True))
    assert wrong.verdict == "different"


@cache
def _small_branches(path: str, *, function: Callable[[Any], Any] = jnp.tanh) -> Dump:
    """Blocks whose branches are small beside what they are added to, and end with a layer that reads no entry."""

    def loss(weights: Any, x: Any) -> Any:
        for block in range(2):
            of_branch = function if block == 1 else jnp.tanh
            with jax.named_scope(path.format(block)):
                with jax.named_scope("up"):
                    up = x @ weights["up"][block]
                with jax.named_scope("down"):
                    down = (jnp.sin(up) * of_branch(up)) @ weights["down"][block]
                x = x + down
        with jax.named_scope("head"):
            x = x @ weights["head"]
        return (x**3).mean()

    draw, shapes = np.random.default_rng(8).normal, {"up": (4, 6), "down": (6, 4)}
    blocks: dict[str, Any] = {
        name: [draw(size=shape).astype(np.float32) / 10 for _ in range(2)] for name, shape in shapes.items()
    }
    return gs.capture(loss, blocks | {"head": WEIGHTS["head"]["w"]}, INPUT, origins=False)


@pytest.mark.slow
@pytest.mark.parametrize("function", [jnp.sin, jnp.exp])
def test_a_branch_is_compared_whose_error_is_small_in_the_sum(function: Callable[[Any], Any]) -> None:
    found = gs.compare(_small_branches("layers/{}"), _small_branches("l{}", function=function))
    assert found.first_divergence.forward is not None
    assert found.first_divergence.forward.name == "layers/1/down"


KERNEL = _draw(size=(5, 5, 1, 4)).astype(np.float32) / 5
FULL_KERNEL = _draw(size=(3, 3, 4, 4)).astype(np.float32) / 5
IMAGES = _draw(size=(4, 24, 24, 4)).astype(np.float32)


@cache
def _averaged(conv: str, gate: str, head: str, *, flip: bool, hides: tuple[float, float]) -> Dump:
    """A depthwise convolution of which an average is left, which flipping its kernel hardly changes."""

    def loss(weights: Any, x: Any) -> Any:
        with jax.named_scope(conv):
            x = jax.lax.conv_general_dilated(
                x, weights[conv]["w"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=4
            )
        x = jnp.tanh(x).mean((1, 2)) * hides[0] + 1
        with jax.named_scope(gate):
            x = x @ weights[gate]["w"]
        with jax.named_scope(head):
            return jnp.square((x * hides[1] + 1) @ weights[head]["w"] - 1).mean()

    kernel = KERNEL[::-1, ::-1] if flip else KERNEL
    weights = {conv: {"w": kernel}, gate: WEIGHTS["gate"], head: WEIGHTS["head"]}
    return gs.capture(loss, weights, IMAGES, origins=False)


@pytest.mark.slow
@pytest.mark.parametrize("hides", [(0.02, 0.5), (0.1, 0.1)], ids=["the loss", "all that is behind the next layer"])
def test_a_convolution_is_at_fault_where_hardly_anything_behind_it_shows_that(hides: tuple[float, float]) -> None:
    usual, right, flipped = (
        _averaged(*names, flip=flip, hides=hides)
        for names, flip in (
            (("dw", "gate", "fc"), False),
            (("conv", "unit", "out"), False),
            (("conv", "unit", "out"), True),
        )
    )
    assert gs.compare(usual, right).verdict == "same"
    found = gs.compare(usual, flipped)
    assert found.first_divergence.forward is not None
    assert found.first_divergence.forward.name == "dw"
    assert "Forward first differs at `dw` (rel_l2" in found.sentence
    assert "it flips its kernel along [0, 1]" in found.sentence


@pytest.mark.slow
@sampled("fault", [False, True])
def test_a_scope_around_more_than_a_convolution_is_not_at_fault(fault: bool) -> None:
    def program(names: Mapping[str, str], *, inside: bool, fault: bool = False) -> Dump:
        def normalised(x: Any) -> Any:
            return (x - x.mean((1, 2), keepdims=True)) / jnp.sqrt(x.var((1, 2), keepdims=True) + 1e-5)

        def loss(weights: Any, x: Any) -> Any:
            with jax.named_scope(names["conv"]):
                x = jax.lax.conv_general_dilated(
                    x, weights["conv"]["w"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
                )
                x = normalised(x) if inside else x
            x = x if inside else normalised(x)
            with jax.named_scope(names["mix"]):
                x = jnp.tanh(x @ weights["mix"]["w"])
            with jax.named_scope(names["gate"]):
                x = jnp.tanh(x) @ weights["gate"]["w"]
                x = x * 1.1 + 0.1 * jnp.abs(x) if fault else x
            with jax.named_scope(names["head"]):
                return jnp.square(x.mean((1, 2)) @ weights["head"]["w"] - 1).mean()

        return gs.capture(loss, {"conv": {"w": FULL_KERNEL}, **WEIGHTS}, IMAGES, origins=False)

    port = {**PORTED, "conv": "Conv_0"}
    found = gs.compare(program({**SAME, "conv": "conv"}, inside=False), program(port, inside=True, fault=fault))
    if not fault:
        assert found.verdict == "same"
        assert "in another order" not in found.sentence
    else:
        assert found.first_divergence.forward is not None
        assert found.first_divergence.forward.name == "gate", found.sentence


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("var", "mean"), "Forward first differs at `norm` ("),
        (
            ("mean", "other"),
            "different state (`batch_stats/norm/mean`; it has the values of `batch_stats/other`)",
        ),
    ],
    ids=["exchanged", "of another layer"],
)
def test_a_norm_with_wrong_statistics_is_at_fault_also_where_they_make_nan(given: tuple[str, str], words: str) -> None:
    statistics = {"mean": _draw(size=4), "var": np.square(_draw(size=4)) + 0.5, "other": _draw(size=4)}

    def program(names: Mapping[str, str], mean: str, var: str) -> Dump:
        norm = names["mix"]

        def loss(variables: Any, x: Any) -> Any:
            weights, state = variables["params"], variables["batch_stats"]
            with jax.named_scope(names["gate"]):
                x = x @ weights[names["gate"]]["w"] + state["other"][None]
            with jax.named_scope(norm):
                x = (x - state[norm]["mean"][None]) * jax.lax.rsqrt(state[norm]["var"] + 1e-5)[None]
                x = x * weights[norm]["scale"][None]
            with jax.named_scope(names["head"]):
                return jnp.square(jnp.tanh(x) @ weights[names["head"]]["w"] - 1).mean()

        weights = {names[key]: WEIGHTS[key] for key in ("gate", "head")} | {norm: {"scale": 1 + WEIGHTS["mix"]["w"][0]}}
        own = {key: value.astype(np.float32) for key, value in statistics.items()}
        state = {norm: {"mean": own[mean], "var": own[var]}, "other": own["other"]}
        return gs.capture(loss, {"params": weights, "batch_stats": state}, INPUT, origins=False)

    mean, var = given if given == ("var", "mean") else (given[1], "var")
    found = gs.compare(program({**SAME, "mix": "norm"}, "mean", "var"), program({**PORTED, "mix": "bn"}, mean, var))
    assert words in found.sentence
    assert found.first_divergence.forward is not None
    assert found.first_divergence.forward.name == "norm"


def test_a_value_that_nothing_behind_it_bears_out_is_told_of_runs_that_are_the_same() -> None:
    tokens = _draw(size=(5, 6, 4)).astype(np.float32)

    def program(mix: str, head: str, *, flip: bool) -> Dump:
        def loss(weights: Any, x: Any) -> Any:
            with jax.named_scope(mix):
                x = jnp.tanh(x @ weights[mix]["w"])
                x = x[:, ::-1] if flip else x
            with jax.named_scope(head):
                return jnp.square(x.mean(1) @ weights[head]["w"]).mean()

        return gs.capture(loss, {mix: WEIGHTS["mix"], head: WEIGHTS["head"]}, tokens, origins=False)

    found = gs.compare(program("mix", "head", flip=False), program("dense", "out", flip=True))
    assert found.verdict == "same"
    words = "`mix` has the values of `dense` in another order, and nothing that is computed from either shows it"
    assert words in found.sentence
    right = gs.compare(program("mix", "head", flip=False), program("dense", "out", flip=False))
    assert "in another order" not in right.sentence


def test_a_value_in_another_order_that_a_layer_behind_it_shows_is_not_said_to_be_unshown() -> None:
    tokens, drawn = _draw(size=(5, 6, 4)).astype(np.float32), _draw(size=(12, 4)).astype(np.float32)

    def program(mix: str, head: str, *, flip: bool) -> Dump:
        def loss(weights: Any, x: Any) -> Any:
            with jax.named_scope(mix):  # in two directions, of which one is not turned back
                forward, backward = (jnp.tanh(x @ w) for w in weights[mix])
                x = jnp.concatenate([forward, backward[:, ::-1] if flip else backward], -1)
            x = jnp.tanh(x)
            with jax.named_scope(head):
                x = x @ weights[head]["w"]
            with jax.named_scope("criterion"):
                return 100 + jnp.cos(3 * x).mean()

        weights = {mix: [drawn[:4], drawn[4:8]], head: {"w": drawn[8:].reshape(8, 2)}}
        return gs.capture(loss, weights, tokens, origins=False)

    found = gs.compare(program("mix", "head", flip=False), program("dense", "out", flip=True))
    assert found.verdict == "different"
    assert "`head`" in found.sentence
    assert not any("nothing that is computed" in row.likely for row in found.rows), found.sentence
