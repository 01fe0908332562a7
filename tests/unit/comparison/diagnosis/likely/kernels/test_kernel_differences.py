"""What two layers do differently with a kernel is told where their values show it, and nothing where they do not."""

from __future__ import annotations

import contextlib
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import gradscope as gs
from gradscope.api.reading import Dump
from gradscope.comparison.diagnosis.likely.layers.kernels.kernel_uses import KernelUse, kernel_uses
from tests.support.ports.port import captured
from tests.support.sampled import sampled

DRAW = np.random.default_rng(17)
IMAGE, KERNEL, BIAS = (DRAW.normal(size=size).astype(np.float32) for size in ((3, 8, 8, 4), (3, 3, 4, 6), (6,)))
JOINED = DRAW.normal(size=(12, 6)).astype(np.float32)
ORDER = ("NHWC", "HWIO", "NHWC")


def _conv(x: Any, kernel: Any, order: Any = ORDER, *, padding: Any = "SAME", stride: int = 1, **options: Any) -> Any:
    rank = x.ndim - 2
    return lax.conv_general_dilated(x, kernel, (stride,) * rank, padding, dimension_numbers=order, **options)


def _uses(read: Any, kernel: Any, value: Any, *biases: Any) -> list[KernelUse]:
    tensors = (np.asarray(each, np.float64) for each in (read, kernel, value))
    with np.errstate(all="ignore"):
        return list(kernel_uses(*tensors, [np.asarray(each, np.float64) for each in biases]))


@pytest.mark.slow
def test_the_places_of_the_taps_are_found() -> None:
    for stride, padding, begins in ((1, "SAME", (1, 1)), (2, "SAME", (0, 0)), (2, [(1, 1)] * 2, (1, 1))):
        (use,) = _uses(IMAGE, KERNEL, _conv(IMAGE, KERNEL, stride=stride, padding=padding))
        assert (use.axes, use.flipped, use.padding, use.bias, use.function) == (
            (0, 1, 2, 3), (), "constant", None, "no function",
        )  # fmt: skip
        assert (use.places.begins, use.places.strides) == (begins, (stride, stride))
    (use,) = _uses(IMAGE, KERNEL, _conv(IMAGE, KERNEL, rhs_dilation=(2, 2)))
    assert (use.places.dilations, use.places.begins) == ((2, 2), (2, 2))
    transposed = lax.conv_transpose(IMAGE, KERNEL, (2, 2), "SAME", dimension_numbers=ORDER)
    (use,) = _uses(IMAGE, KERNEL, transposed)
    assert (use.places.spreads, use.places.strides) == ((2, 2), (1, 1))


def test_causal_and_other_paddings_are_found() -> None:
    series, kernel = (DRAW.normal(size=size).astype(np.float32) for size in ((2, 40, 3), (2, 3, 5)))
    order = ("NWC", "WIO", "NWC")
    for padding, begins in (((16, 0), (16,)), ((0, 16), (0,)), ((8, 8), (8,))):
        (use,) = _uses(series, kernel, _conv(series, kernel, order, padding=[padding], rhs_dilation=(16,)))
        assert (use.places.begins, use.places.dilations) == (begins, (16,))
    for mode in ("wrap", "reflect", "symmetric", "edge"):
        padded = np.pad(IMAGE, [(0, 0), (1, 1), (1, 1), (0, 0)], mode=mode)
        found = _uses(IMAGE, KERNEL, _conv(padded, KERNEL, padding="VALID"))
        assert mode in {each.padding for each in found} <= {"edge", "symmetric", mode}, mode  # one row: the same
        assert found[0].padding == ("edge" if mode == "symmetric" else mode)


def test_how_a_kernel_is_taken_is_found() -> None:
    (use,) = _uses(IMAGE, KERNEL, _conv(IMAGE, KERNEL, ("NHWC", "WHIO", "NHWC")))
    assert (use.axes, use.flipped) == ((1, 0, 2, 3), ())
    (use,) = _uses(IMAGE, KERNEL, _conv(IMAGE, KERNEL[:, ::-1]))
    assert (use.axes, use.flipped) == ((0, 1, 2, 3), (1,))
    depthwise = DRAW.normal(size=(3, 3, 1, 8)).astype(np.float32)
    (use,) = _uses(IMAGE, depthwise, _conv(IMAGE, depthwise, feature_group_count=4))
    assert use.axes == (0, 1, 2, 3)
    square = DRAW.normal(size=(4, 4)).astype(np.float32)
    found = _uses(IMAGE, square, np.tanh(IMAGE @ square.T + BIAS[:4]), BIAS[:4])
    assert [(each.axes, each.bias, each.function) for each in found] == [((1, 0), 0, "tanh")]
    assert not _uses(IMAGE, KERNEL, DRAW.normal(size=(3, 8, 8, 6)))


WEIGHTS = {
    "one": {"kernel": KERNEL, "bias": BIAS},
    "two": {"kernel": DRAW.normal(size=(3, 3, 6, 6)).astype(np.float32), "bias": BIAS[::-1].copy()},
    "three": {"kernel": DRAW.normal(size=(3, 3, 6, 6)).astype(np.float32), "bias": BIAS / 2},
}  # fmt: skip


@cache
def _network(
    fault: str = "", *, port: bool = False, scale: float = 1.0, inside: bool = False, biased: bool = True,
    function: Any = jax.nn.relu,
) -> Dump:  # fmt: skip
    def loss(weights: Any, batch: Any) -> Any:
        x = batch["x"]
        for name in weights:
            with jax.named_scope(name):
                wrong = name == "two" and bool(fault)
                own = weights["three" if wrong and fault == "another" else name]
                order = ("NHWC", "WHIO", "NHWC") if wrong and fault == "swapped" else ORDER
                kernel = own["kernel"].transpose(2, 3, 1, 0) if port else own["kernel"]
                strided = [(0, 1)] * 2 if wrong and fault == "SAME" else [(1, 1)] * 2
                x = _conv(x, kernel, order, padding=strided if name == "two" else "SAME", stride=1 + (name == "two"))
                bias = 0 if wrong and fault == "no bias" else own["bias"]
                x = x + bias if biased else x
                x = function(x) if inside else x
            x = x if biased else x + bias
            x = x if inside else function(x)
        return jnp.square(x).mean()

    weights = {
        name: each | {"kernel": np.ascontiguousarray(each["kernel"].transpose(3, 2, 0, 1))} if port else each
        for name, each in WEIGHTS.items()
    }
    weights["one"] = weights["one"] | {"bias": scale * weights["one"]["bias"]}
    return captured((loss, weights, {"x": IMAGE}))


@pytest.fixture(scope="module")
def reference() -> Dump:
    return _network()


@pytest.mark.slow
@sampled(
    ("fault", "words"),
    [
        ("swapped", "it takes its kernel with its axes [0, 1] swapped)"),
        ("SAME", "it pads the beginnings of the axes [1, 2] by [0, 0], and the reference by [1, 1])"),
        ("no bias", "it adds no bias, and the reference `two/bias`)"),
        ("another", "it multiplies by `three/kernel` and adds `three/bias`, and the reference `two/bias`)"),
    ],
)
def test_what_a_port_does_differently_is_told(reference: Dump, fault: str, words: str) -> None:
    found = gs.compare(reference, _network(fault, port=True))
    assert found.sentence.startswith("Forward first differs at `two` ("), found.sentence
    assert words in found.sentence, found.sentence


@pytest.mark.slow
def test_a_function_is_not_told_that_only_one_program_has_a_layer_around(reference: Dump) -> None:
    sentence = gs.compare(reference, _network("SAME", port=True, inside=True)).sentence
    assert "it pads the beginnings of the axes [1, 2] by [0, 0], and the reference by [1, 1])" in sentence, sentence


@pytest.mark.slow
def test_a_function_is_missing_only_where_a_layer_reads_the_product_without_it() -> None:
    reference = _network(inside=True)
    told = gs.compare(reference, _network(port=True, inside=True, function=jnp.positive)).sentence
    assert "made here; it applies no function to its product, and the reference relu" in told, told
    behind = gs.compare(reference, _network(port=True, function=jax.nn.gelu)).sentence
    assert "Forward first differs at `one` (" in behind, behind
    assert "no function" not in behind, behind


@pytest.mark.slow
def test_a_bias_that_a_program_adds_outside_of_the_layer_is_not_told(reference: Dump) -> None:
    assert gs.compare(reference, _network(port=True, biased=False))
    sentence = gs.compare(reference, _network("SAME", port=True, biased=False)).sentence
    assert "it pads the beginnings of the axes [1, 2] by [0, 0], and the reference by [1, 1])" in sentence, sentence


@pytest.mark.slow
def test_nothing_is_told_of_a_layer_that_is_right(reference: Dump) -> None:
    assert gs.compare(reference, _network(port=True))
    sentence = gs.compare(reference, _network(port=True, scale=2.0)).sentence
    given, _, behind = sentence.partition("Forward first differs at `one`")
    assert given.endswith("(`one/bias`; it is 2 times the reference's). "), sentence
    assert "; it " not in behind, sentence


def _joining(*, order: tuple[str, str] = ("left", "right"), function: Any = jax.nn.relu, port: bool = False) -> Dump:
    """Two values that are joined, a sum that only the reference has a scope for, and a layer behind each."""
    names = ("Dense_0", "Dense_1", "Dense_2", "Dense_3") if port else ("left", "right", "joined", "out")
    kernels = (
        WEIGHTS["one"]["kernel"][0, 0],
        WEIGHTS["two"]["kernel"][0, 0][:4],
        JOINED,
        WEIGHTS["two"]["kernel"][0, 1],
    )

    def loss(weights: Any, batch: Any) -> Any:
        values: dict[str, Any] = {}
        for key, name in zip(("left", "right"), names, strict=False):
            with jax.named_scope(name):
                values[key] = batch["x"] @ weights[name]
        with jax.named_scope(names[2]):
            x = jnp.concatenate([values[each] for each in order], -1) @ weights[names[2]]
        with contextlib.nullcontext() if port else jax.named_scope("sum"):
            x = x + values["left"] + 2 * values["right"]
        with jax.named_scope(names[3]):
            x = function(x) @ weights[names[3]]
        return jnp.square(x).mean()

    return captured((loss, dict(zip(names, kernels, strict=True)), {"x": IMAGE[:, :4, :4]}))


@pytest.mark.slow
def test_values_that_are_joined_in_another_order_are_told() -> None:
    found = gs.compare(_joining(), _joining(order=("right", "left"), port=True))
    assert "it joins `right` and `left`, and the reference joins `left` and `right`" in found.sentence, found.sentence


@pytest.mark.slow
def test_another_function_of_a_step_that_only_the_reference_has_is_told() -> None:
    assert gs.compare(_joining(), _joining(port=True))
    found = gs.compare(_joining(), _joining(function=jax.nn.softplus, port=True)).sentence
    assert found.startswith("Forward first differs at `out` ("), found
    assert "it reads the softplus of `sum`, and the reference reads the relu of `sum`" in found, found


@cache
def _summed(*, of_port: bool, fault: str = "") -> Dump:
    """A layer that reads the sum of two layers, or of one and positions that are a parameter."""
    names = ("Dense_0", "Dense_1", "Dense_2", "Dense_3") if of_port else ("one", "two", "three", "out")

    def loss(weights: Any, batch: Any) -> Any:
        one, two, three, out = map(jax.named_scope, names)
        with one:
            x = batch["x"] @ weights["one"]
        x = x if fault == "positions" else x + weights["positions"][None]
        with two:
            x = x @ weights["two"]
        kept = x
        with three:
            x = jnp.sin(x) @ weights["three"]
        x = x if fault == "branch" else kept + x
        with out:
            x = x @ weights["out"]
        return jnp.square(x).mean()

    draw = np.random.default_rng(3).normal
    sizes = {"one": (12, 9), "positions": (4, 9), "two": (9, 9), "three": (9, 9), "out": (9, 2)}
    weights = {name: draw(size=size).astype(np.float32) for name, size in sizes.items()}
    return captured((loss, weights, {"x": draw(size=(3, 4, 12)).astype(np.float32)}))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("positions", "`two` (rel_l2 {}, made here; it reads `one`, and the reference reads `one` + `positions`"),
        ("branch", "`out` (rel_l2 {}, made here; it reads `three`, and the reference reads `two` + `three`"),
    ],
)
def test_a_term_that_a_layer_reads_and_a_port_leaves_out_is_told(fault: str, words: str) -> None:
    reference = _summed(of_port=False)
    assert gs.compare(reference, _summed(of_port=True)).verdict == "same"
    found = gs.compare(reference, _summed(of_port=True, fault=fault))
    for part in words.split("{}"):
        assert part in found.sentence, found.sentence
