"""What two norms do differently is told where their values show it, and nothing where they do not."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.api.reading import Dump
from gradscope.comparison.diagnosis.likely.layers.norms import norm_differences
from gradscope.comparison.diagnosis.likely.layers.norms.norm_differences import norm_difference
from tests.support.ports.port import captured

DRAW = np.random.default_rng(3)
CHANNELS = 16
#: Channels of unequal variance: a number that is added to a variance is no multiple of it.
IMAGES = (DRAW.normal(size=(4, CHANNELS, 3, 3)) + 1) * np.exp(0.7 * DRAW.normal(size=(1, CHANNELS, 1, 1)))
TOKENS = DRAW.normal(size=(4, 6, CHANNELS)) * np.exp(0.7 * DRAW.normal(size=(4, 6, 1)))
SCALE, BIAS = 1 + 0.2 * DRAW.normal(size=CHANNELS), 0.2 * DRAW.normal(size=CHANNELS)
KERNEL = (DRAW.normal(size=(CHANNELS, CHANNELS)) / 4).astype(np.float32)
BATCH, LAYER = (0, 2, 3), (2,)


def _norm(
    x: Any, axes: tuple[int, ...], *, epsilon: float = 1e-5, less: int = 0, mean: Any = 1, var: Any = None
) -> Any:
    x = x.astype(np.float32)
    count = np.prod([x.shape[axis] for axis in axes])
    rest = x - mean * x.mean(axes, keepdims=True)
    variance = np.square(rest).mean(axes, keepdims=True) * (count / (count - less)) if var is None else var
    along = (-1, 1, 1) if axes == BATCH else (-1,)
    made = rest / np.sqrt(variance + epsilon) * SCALE.reshape(along) + BIAS.reshape(along)
    return made.astype(np.float32).astype(np.float64)


def _words(x: Any, ref: Any, cand: Any) -> str:
    return norm_difference((ref, cand), [(each, each) for each in (x, SCALE, BIAS)])


@pytest.mark.parametrize(
    ("x", "axes", "count"), [(IMAGES, BATCH, 36), (TOKENS, LAYER, CHANNELS)], ids=["batch", "layer"]
)
def test_what_two_norms_do_differently_is_told(x: Any, axes: tuple[int, ...], count: int) -> None:
    ref = _norm(x, axes)
    for epsilon, words in ((1e-3, "1.0e-3"), (1e-4, "1.0e-4"), (2e-5, "2.0e-5"), (0.0, "next to nothing")):
        added = f"adds {words} to the variance, and the reference 1.0e-5"
        assert _words(x, ref, _norm(x, axes, epsilon=epsilon)) == added
    added_most = "adds 1.0e-3 to the variance, and the reference 1.0e-5"
    unbiased = _norm(x, axes, less=1)
    assert _words(x, ref, unbiased) == f"divides the variance by {count - 1}, and the reference by {count}"
    assert _words(x, unbiased, ref) == f"divides the variance by {count}, and the reference by {count - 1}"
    both = _norm(x, axes, less=1, epsilon=1e-3)
    assert (
        _words(x, ref, both) == f"divides the variance by {count - 1}, and the reference by {count}, and {added_most}"
    )
    assert _words(x, ref, _norm(x, axes, mean=0)) == "does not subtract the mean, and the reference does"
    along = (-1, 1, 1) if axes == BATCH else (-1,)
    more = (ref - BIAS.reshape(along)) * (1 + 1 / SCALE.reshape(along)) + BIAS.reshape(along)
    assert _words(x, ref, more) == "multiplies by one more than its scale, and the reference by that"
    assert _words(x, more, ref) == "multiplies by its scale, and the reference by one more than that"
    others = "other numbers, as by running statistics" if axes == BATCH else "other numbers"
    given = _norm(x, axes, var=1.7)
    assert (
        _words(x, ref, given)
        == f"normalises by {others}, and the reference by the mean and the variance of what it reads"
    )
    assert (
        _words(x, given, ref)
        == f"normalises by the mean and the variance of what it reads, and the reference by {others}"
    )
    uncentred = _norm(x, axes, mean=0), _norm(x, axes, mean=0, var=1.7)
    assert _words(x, *uncentred) == f"normalises by {others}, and the reference by the mean square of what it reads"


def test_a_scale_may_have_axes_of_one_element() -> None:
    ref, cand = _norm(TOKENS, LAYER), _norm(TOKENS, LAYER, epsilon=1e-3)
    reads = [(TOKENS, TOKENS), *((each.reshape(1, 1, -1), each.reshape(1, 1, -1)) for each in (SCALE, BIAS))]
    assert norm_difference((ref, cand), reads) == "adds 1.0e-3 to the variance, and the reference 1.0e-5"


def test_norms_over_other_groups_of_values_are_told() -> None:
    flat = TOKENS.reshape(-1, CHANNELS)
    ref, cand = ((flat - flat.mean(axis, keepdims=True)) / flat.std(axis, keepdims=True) for axis in (1, 0))
    values = tuple(each * SCALE + BIAS for each in (ref, cand))
    found = norm_difference((values[0], values[1]), [(each, each) for each in (flat, SCALE, BIAS)])
    assert found == "normalises over axes [0], and the reference over axes [1]"
    for axes, words in (((1, 2), "all channels"), (1, f"{CHANNELS} groups of channels")):
        by_example = (TOKENS - TOKENS.mean(axes, keepdims=True)) / TOKENS.std(axes, keepdims=True) * SCALE + BIAS
        found = _words(TOKENS, _norm(TOKENS, LAYER), by_example)
        assert found == f"normalises over {words} of each example, and the reference over axes [2]"


def test_two_examples_show_what_is_normalised_and_not_what_is_added_to_their_variances() -> None:
    two = TOKENS[:2]
    by_example = (two - two.mean((1, 2), keepdims=True)) / two.std((1, 2), keepdims=True) * SCALE + BIAS
    told = "normalises over all channels of each example, and the reference over axes [2]"
    assert _words(two, _norm(two, LAYER), by_example) == told
    rows = TOKENS[:2, 0]
    assert not _words(rows, _norm(rows, (1,)), _norm(rows, (1,), epsilon=1e-2))
    # One example does where hardly anything is added: any number is that of a variance and something more.
    assert _words(two[:1], _norm(two[:1], LAYER), by_example[:1]) == told
    assert told not in _words(two[:1], _norm(two[:1], LAYER), (by_example[:1] - BIAS) / 2 + BIAS)


def test_nothing_is_told_where_the_other_layer_reads_something_of_another_shape() -> None:
    reads = [(TOKENS, TOKENS), (SCALE, np.ones(2 * CHANNELS)), (BIAS, np.ones(2 * CHANNELS))]
    values = _norm(TOKENS, LAYER), TOKENS
    assert norm_difference(values, reads) == ""
    assert norm_difference(values[::-1], [pair[::-1] for pair in reads]) == ""


def test_a_norm_that_reads_zeros_is_not_said_to_normalise_by_other_numbers() -> None:
    read = TOKENS * (np.arange(6) < 4)[:, None]  # as padding that one program alone masks before its norm
    plain, masked = _norm(TOKENS, LAYER), _norm(read, LAYER)
    assert not _words(TOKENS, plain, masked)
    assert not _words(TOKENS, masked, plain)


@cache
def _image_norm(axes: tuple[int, ...], *, port: bool, flat: bool = False, epsilon: float = 1e-5) -> Dump:
    """A norm of the channels of a convolution, which has them first in the reference; all axes have one size.

    Args:
        axes: The axes that it normalises over.
        port: Whether it is the port.
        flat: Whether its positions are merged into tokens before, as those of patches are.
        epsilon: What it adds to the variance.
    """
    image = np.random.default_rng(4).normal(size=(3, 8, 8, 8)).astype(np.float32)

    def loss(weights: Any, batch: Any) -> Any:
        order = ("NHWC", "HWIO", "NHWC") if port else ("NCHW", "OIHW", "NCHW")
        with jax.named_scope("Conv_0" if port else "conv"):
            x = jax.lax.conv_general_dilated(batch["x"], weights["kernel"], (1, 1), "SAME", dimension_numbers=order)
        x = x if port else x.transpose(0, 2, 3, 1)
        x = x.reshape(len(x), -1, x.shape[-1]) if flat else x
        with jax.named_scope("LayerNorm_0" if port else "norm"):
            x = (x - x.mean(axes, keepdims=True)) / jnp.sqrt(x.var(axes, keepdims=True) + epsilon)
            x = x * weights["scale"] + weights["bias"]
        return jnp.square(jnp.tanh(x)).mean()

    drawn = np.random.default_rng(6).normal(size=(3, 3, 8, 8)).astype(np.float32)
    weights = {"kernel": drawn if port else drawn.transpose(3, 2, 0, 1), "scale": SCALE[:8], "bias": BIAS[:8]}
    weights = {name: np.ascontiguousarray(each, np.float32) for name, each in weights.items()}
    return captured((loss, weights, {"x": image if port else image.transpose(0, 3, 1, 2)}))


@pytest.mark.slow
def test_a_norm_is_known_behind_an_image_whose_axes_have_one_size() -> None:
    reference = _image_norm((3,), port=False)
    assert gs.compare(reference, _image_norm((3,), port=True))
    for axes, words in (((1, 2), "8 groups of channels"), ((1, 2, 3), "all channels")):
        sentence = gs.compare(reference, _image_norm(axes, port=True)).sentence
        assert f"; it normalises over {words} of each example, and the reference over axes [3];" in sentence, sentence


@pytest.mark.slow
def test_a_norm_is_known_behind_an_image_whose_positions_are_merged() -> None:
    reference = _image_norm((2,), port=False, flat=True)
    assert gs.compare(reference, _image_norm((2,), port=True, flat=True)).verdict == "same"
    sentence = gs.compare(reference, _image_norm((2,), port=True, flat=True, epsilon=1e-2)).sentence
    assert "; it adds 1.0e-2 to the variance, and the reference 1.0e-5;" in sentence, sentence


def test_a_norm_over_groups_of_interleaved_channels_is_told() -> None:
    def norm(x: Any, cut: tuple[int, int], axis: int) -> Any:
        groups = x.reshape(len(x), *cut, *x.shape[2:])
        axes = tuple(each for each in (1, 2, 3, 4) if each != axis)
        rest = groups - groups.mean(axes, keepdims=True)
        made = (rest / np.sqrt(np.square(rest).mean(axes, keepdims=True) + 1e-5)).reshape(x.shape)
        return made * SCALE.reshape(-1, 1, 1) + BIAS.reshape(-1, 1, 1)

    for groups in (2, 4, 8):
        right, wrong = norm(IMAGES, (groups, CHANNELS // groups), 1), norm(IMAGES, (CHANNELS // groups, groups), 2)
        words = f"{groups} groups of channels of each example"
        told = f"normalises over {words} that are {groups} apart, and the reference over {words}"
        assert _words(IMAGES, right, wrong) == told
        # With the channels last, too.
        arrays = [np.moveaxis(each, 1, -1) for each in (IMAGES, right, wrong)]
        assert _words(*arrays) == told
        assert not _words(IMAGES, wrong, wrong)
        assert not _words(IMAGES, right, right)


def test_norms_that_carry_an_error_and_other_errors_are_no_difference_of_norms() -> None:
    ref = _norm(IMAGES, BATCH)
    moved = IMAGES * (1 + 1e-3 * DRAW.normal(size=IMAGES.shape))
    reads = [(IMAGES, moved), (SCALE, SCALE), (BIAS, BIAS)]
    assert not norm_difference((ref, _norm(moved, BATCH)), reads)
    assert not _words(IMAGES, ref, ref + 1e-4 * DRAW.normal(size=ref.shape))
    # Of equal variances, nothing tells a number that is added from one that they are divided by.
    even = IMAGES / IMAGES.std(BATCH, keepdims=True)
    assert not _words(even, _norm(even, BATCH), _norm(even, BATCH, less=1))
    # By another scale, a norm divides by its own deviation still.
    along = BIAS.reshape(-1, 1, 1)
    assert not _words(IMAGES, ref, (ref - along) * 1.001 + along)


@cache
def _program(epsilon: float, *, steep: float = 1.0, off: float = 0.0) -> Dump:
    """Returns a capture of a norm behind a step that is a little off, and in front of one that is steep."""
    params = {"scale": SCALE.astype(np.float32), "kernel": KERNEL}

    def loss(params: Any, x: Any) -> Any:
        with jax.named_scope("before"):
            x = x * np.float32(1 + off)
        with jax.named_scope("norm"):
            rest = x - x.mean(0, keepdims=True)
            x = params["scale"][None] * rest / jnp.sqrt(jnp.square(rest).mean(0, keepdims=True) + epsilon)
        with jax.named_scope("steep"):
            x = jnp.exp(steep * x)
        with jax.named_scope("head"):
            return jnp.square(x @ params["kernel"]).mean()

    return gs.capture(loss, params, IMAGES[:, :, 0, 0].astype(np.float32), origins=False)


def test_the_sentence_tells_of_an_epsilon_beyond_its_tolerance_and_within_it() -> None:
    told = "adds {} to the variance, and the reference 1.0e-5"
    sentence = gs.compare(_program(1e-5), _program(1e-3)).sentence
    assert sentence.startswith("Forward first differs at `norm` (rel_l2 "), sentence
    assert told.format("1.0e-3") in sentence
    sentence = gs.compare(_program(1e-5), _program(1.5e-5)).sentence
    assert sentence.startswith("Same within tolerance"), sentence
    assert f"; `norm` {told.format('1.5e-5')}" in sentence
    steep, off = (_program(epsilon, steep=3.0, off=off) for epsilon, off in ((1e-5, 0.0), (2e-5, 1.5e-6)))
    sentence = gs.compare(steep, off).sentence
    begins = sentence.partition(", and the error begins at `norm` (rel_l2 2.6e-5, ")[2]
    assert "made here" not in begins.partition(")")[0]  # its input has an error, too
    assert begins.partition(")")[0].endswith(f"its inputs; it {told.format('2.0e-5')}"), sentence


def test_what_is_no_norm_is_known_by_a_few_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dense layer of large values beside its bias might be hundreds of norms."""
    whole: list[Any] = []
    factor = norm_differences._factor
    monkeypatch.setattr(norm_differences, "_factor", lambda *given: whole.append(given) or factor(*given))
    tokens = DRAW.normal(size=(2, 64, CHANNELS))
    made = tokens @ KERNEL + BIAS
    assert not _words(tokens, made, made * 1.1)
    assert not whole
    assert _words(TOKENS, _norm(TOKENS, LAYER), _norm(TOKENS, LAYER, epsilon=1e-3))
    assert whole
