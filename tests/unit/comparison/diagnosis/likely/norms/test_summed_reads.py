"""What norms differ in is told where they read a sum that only one program, or none, has an entry for."""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import gradscope as gs
from gradscope.api.reading import Dump
from tests.support.data import drawn
from tests.support.sampled import sampled

NAMES = ("embed", "branch", "norm", "head")
PORT = ("Embed_0", "Dense_0", "LayerNorm_0", "Dense_1")

_WEIGHTS = {
    "embed": drawn(1, 6, 12),
    "branch": drawn(2, 12, 12),
    "scale": 1 + drawn(3, 12) / 4,
    "bias": drawn(4, 12),
    "head": drawn(5, 12, 3),
}


def _normalised(x: Any, epsilon: float, *, centred: bool) -> Any:
    x = x - x.mean(-1, keepdims=True) if centred else x
    return x / jnp.sqrt(jnp.square(x).mean(-1, keepdims=True) + epsilon)


@cache
def _block(*, of_port: bool, centred: bool = True, epsilon: float = 1e-5, stream: float = 1.0, fault: str = "") -> Dump:
    """A layer behind a norm, which reads the sum of two layers that has no name."""
    embed, branch, norm, head = map(jax.named_scope, PORT if of_port else NAMES)

    def loss(weights: Any, x: Any) -> Any:
        with embed:
            x = x @ weights["embed"]
        with branch:
            y = jnp.sin(x) @ weights["branch"]
        summed = {"": stream * x + y, "left out": y, "behind": y}[fault]
        with norm:
            x = (
                _normalised(summed, epsilon, centred=centred) * weights["scale"][None, None]
                + weights["bias"][None, None]
                + (x if fault == "behind" else 0)
            )
        with head:
            x = x @ weights["head"]
        return jnp.square(x).mean()

    return gs.capture(loss, _WEIGHTS, drawn(6, 4, 5, 6), origins=False)


@pytest.mark.slow
@pytest.mark.parametrize("centred", [True, False])
@sampled(
    ("fault", "words"),
    [
        ({"epsilon": 0.01}, "it adds 1.0e-2 to the variance, and the reference 1.0e-5"),
        ({"fault": "left out"}, "it reads `branch`, and the reference `branch` + `embed`"),
        ({"stream": 0.5}, "it reads `branch` and `embed` as 2 to 1, and the reference as 1 to 1"),
        (
            {"fault": "behind"},
            "it normalises `branch` and then adds `embed`, and the reference normalises `branch` + `embed`",
        ),
    ],
)
def test_what_norms_differ_in_that_read_a_sum_is_told(centred: bool, fault: dict[str, Any], words: str) -> None:
    reference = _block(of_port=False, centred=centred)
    assert gs.compare(reference, _block(of_port=True, centred=centred)).verdict == "same"
    found = gs.compare(reference, _block(of_port=True, centred=centred, **fault))
    assert found.sentence.startswith("Forward first differs at `norm` ("), found.sentence
    assert f", made here; {words}" in found.sentence, found.sentence


@pytest.mark.slow
def test_no_sum_is_told_where_the_norm_reads_something_else() -> None:
    reference = _block(of_port=False)
    found = gs.compare(reference, _block(of_port=True, centred=False))
    assert "it does not subtract the mean, and the reference does" in found.sentence


@cache
def _stacked(*, of_port: bool, epsilon: float = 1e-5) -> Dump:
    """A norm behind a residual block of which one program returns the sum, and the other one only the branch."""
    embed, block, branch, norm = map(jax.named_scope, (*PORT[:1], "Block_0", *PORT[1:3]) if of_port else "ebfn")

    def loss(weights: Any, x: Any) -> Any:
        with embed:
            x = x @ weights["embed"]
        with block:
            with branch:
                y = jnp.sin(x) @ weights["branch"]
            read = x + y if not of_port else y
        x = read + x if of_port else read
        with norm:
            x = _normalised(x, epsilon, centred=True) * weights["scale"][None, None]
        return jnp.square(jnp.tanh(x)).mean()

    weights = {name: _WEIGHTS[name] for name in ("embed", "branch", "scale")}
    return gs.capture(loss, weights, drawn(6, 4, 5, 6), origins=False)


@cache
def _joined(*, of_port: bool, first: int = 0) -> Dump:
    """A norm of two values that are joined in one order or the other, in a layer whose output has a name."""
    one, block, norm = map(jax.named_scope, ("Dense_0", "Block_0", "LayerNorm_0") if of_port else ("a", "b", "norm"))

    def loss(weights: Any, x: Any) -> Any:
        with block:
            with one:
                y = x @ weights["a"]
            x = jnp.concatenate([x, y] if first == 0 else [y, x], -1)
        with norm:
            x = _normalised(x, 1e-5, centred=True) * weights["scale"][None, None]
        return jnp.square(jnp.tanh(x)).mean()

    weights = {"a": drawn(1, 6, 6), "scale": 1 + drawn(2, 12) / 4}
    return gs.capture(loss, weights, drawn(6, 4, 5, 6), origins=False)


def test_a_norm_that_reads_joined_values_in_another_order_is_told() -> None:
    reference = _joined(of_port=False)
    assert gs.compare(reference, _joined(of_port=True)).verdict == "same"
    found = gs.compare(reference, _joined(of_port=True, first=1))
    assert "it reads `b` in another order than the reference" in found.sentence, found.sentence


@pytest.mark.slow
def test_a_sum_that_has_a_name_in_one_program_alone_is_the_sum_of_its_terms() -> None:
    reference = _stacked(of_port=False)
    assert gs.compare(reference, _stacked(of_port=True)).verdict == "same"
    found = gs.compare(reference, _stacked(of_port=True, epsilon=0.01))
    assert "it adds 1.0e-2 to the variance, and the reference 1.0e-5" in found.sentence, found.sentence


@cache
def _positioned(*, of_port: bool, epsilon: float = 1e-5, table: str = "table") -> Dump:
    """A norm that reads the sum of a layer and a table of positions, which no layer looks up."""
    embed, norm = map(jax.named_scope, ("Dense_0", "LayerNorm_0") if of_port else ("embed", "norm"))
    added = {"table": drawn(7, 5, 12), "other": drawn(8, 5, 12)}

    def loss(weights: Any, x: Any) -> Any:
        with embed:
            x = x @ weights["embed"]
        x = x + (weights[table][None] if table else 0)
        with norm:
            x = _normalised(x, epsilon, centred=True) * weights["scale"][None, None] + weights["bias"][None, None]
        return jnp.sin(x).mean() + jnp.square(weights["other"]).mean()

    return gs.capture(loss, _WEIGHTS | added, drawn(6, 4, 5, 6), origins=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"epsilon": 0.1}, "adds 0.10 to the variance, and the reference 1.0e-5"),
        ({"table": ""}, "reads `embed`, and the reference `embed` + `table`"),
        ({"table": "other"}, "reads `embed` + `other`, and the reference `embed` + `table`"),
    ],
)
def test_a_parameter_may_be_a_term_of_what_a_norm_reads(fault: dict[str, Any], words: str) -> None:
    reference = _positioned(of_port=False)
    assert gs.compare(reference, _positioned(of_port=True)).verdict == "same"
    found = gs.compare(reference, _positioned(of_port=True, **fault))
    assert found.sentence.startswith("Forward first differs at `norm` ("), found.sentence
    assert f", made here; it {words};" in found.sentence, found.sentence


@cache
def _stream(*, of_port: bool, share: float = 0.5, fault: str = "") -> Dump:
    """A residual stream, whose sums only the port has scopes around; the first branch is along the tokens."""
    embed, mixed, first, second = map(jax.named_scope, PORT if of_port else ("embed", "mixed", "first", "second"))
    tokens, channels = map(jax.named_scope, ("TokenMixing_0", "ChannelMixing_0") if of_port else ("t", "c"))
    weights = {"embed": drawn(1, 6, 12), "mixed": drawn(2, 5, 5), "channels": drawn(3, 12, 12), "head": drawn(9, 12, 3)}
    weights |= {name: 1 + drawn(number, 12) / 4 for number, name in enumerate(("one", "other"), 4)}

    def loss(weights: Any, x: Any) -> Any:
        with embed:
            x = x @ weights["embed"]
        with tokens:
            with mixed:
                y = jnp.tanh(x.swapaxes(1, 2)) @ weights["mixed"]
            x = y.swapaxes(1, 2) + (0 if fault else x) if of_port else x
        x = x if of_port else y.swapaxes(1, 2) + x
        with first:
            z = _normalised(x, 1e-5, centred=True) * weights["one"][None, None]
        with channels:
            with jax.named_scope("dense"):
                z = z @ weights["channels"]
            x, z = (x + share * z, z) if of_port else (x, z)
        x = x if of_port else x + share * z
        with second:
            x = _normalised(x, 1e-5, centred=True) * weights["other"][None, None]
        return jnp.square(jnp.tanh(x @ weights["head"])).mean()

    return gs.capture(loss, weights, drawn(6, 4, 5, 6), origins=False)


@pytest.mark.slow
@sampled(
    ("fault", "first", "words"),
    [
        (
            {"fault": "left out"},
            "`TokenMixing_0`, only in the candidate, and next at `first` (",
            "it reads `t/mixed`, and the reference `embed` + `t/mixed`",
        ),
        (
            {"share": 1.0},
            "`ChannelMixing_0`, only in the candidate, and next at `second` (",
            "it reads `c/dense` besides 2 other terms, and the reference 0.50 times `c/dense` besides",
        ),
    ],
)
def test_the_terms_of_a_stream_are_told_that_only_one_program_has_scopes_around(
    fault: dict[str, Any], first: str, words: str
) -> None:
    reference = _stream(of_port=False)
    assert gs.compare(reference, _stream(of_port=True)).verdict == "same"
    sentence = gs.compare(reference, _stream(of_port=True, **fault)).sentence
    assert sentence.startswith(f"Forward first differs at {first}"), sentence
    assert words in sentence


@cache
def _blocks(*, of_port: bool, moved: bool = False) -> Dump:
    """Two residual blocks and a norm between them, in whose port each block has a scope around its sum."""
    names = ("Ffn_0", "Dense_0", "Norm_0", "Conv_0", "Dense_1") if of_port else ("", "linear", "norm", "conv", "point")
    ffn, linear, norm, conv, point = (jax.named_scope(each) if each else nullcontext() for each in names)
    weights = {"linear": drawn(1, 12, 12), "scale": 1 + drawn(2, 12) / 4, "point": drawn(3, 12, 12)}

    def convolved(weights: Any, x: Any) -> Any:
        with conv:
            with point:
                y = jnp.tanh(x) @ weights["point"]
            return x + y if of_port else y

    def loss(weights: Any, x: Any) -> Any:
        with ffn:
            with linear:
                y = jnp.sin(x) @ weights["linear"]
            x = x + 0.5 * y
        x = convolved(weights, x) if moved else x
        with norm:
            z = _normalised(x, 1e-5, centred=True) * weights["scale"][None, None]
        x = x + jnp.sin(z)
        x = x if moved else convolved(weights, x) if of_port else x + convolved(weights, x)
        return jnp.square(x).mean()

    return gs.capture(loss, weights, drawn(6, 4, 5, 12), origins=False)


def test_a_block_that_is_moved_before_a_norm_is_not_put_at_the_block_before_it() -> None:
    reference = _blocks(of_port=False)
    assert gs.compare(reference, _blocks(of_port=True)).verdict == "same"
    found = gs.compare(reference, _blocks(of_port=True, moved=True))
    first = "Forward first differs at `Conv_0`, only in the candidate, and next at `norm` ("
    assert found.sentence.startswith(first), found.sentence


_IMAGES = {
    "conv": drawn(7, 3, 8),
    "time": drawn(8, 5, 8),
    "scale": 1 + drawn(9, 8) / 4,
    "bias": drawn(10, 8),
    "head": drawn(11, 8, 2),
}


@cache
def _timed(*, of_port: bool, epsilon: float = 1e-5, groups: int = 4, timed: float = 1.0) -> Dump:
    """A norm of groups of channels of an image, to which the embedding of a time has been added at each position."""
    conv, time, norm, head = map(jax.named_scope, ("a", "b", "c", "d") if of_port else ("conv", "time", "norm", "head"))

    def loss(weights: Any, batch: Any) -> Any:
        with conv:
            x = batch["x"] @ weights["conv"]
        with time:
            t = batch["t"] @ weights["time"]
        x = x + t[:, None, None] * timed
        with norm:
            apart = x.reshape(*x.shape[:3], groups, -1)
            apart = apart - apart.mean((1, 2, 4), keepdims=True)
            apart = apart / jnp.sqrt(jnp.square(apart).mean((1, 2, 4), keepdims=True) + epsilon)
            x = apart.reshape(x.shape) * weights["scale"][None, None, None] + weights["bias"][None, None, None]
        with head:
            x = x @ weights["head"]
        return jnp.square(x).mean()

    return gs.capture(loss, _IMAGES, {"x": drawn(12, 3, 4, 6, 3), "t": drawn(13, 3, 5)}, origins=False)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"epsilon": 0.03}, "it adds 3.0e-2 to the variance, and the reference 1.0e-5"),
        ({"groups": 2}, "it normalises over 2 groups of channels of each example, and the reference over 4 groups"),
        ({"timed": 0.0}, "it reads `conv`, and the reference `conv` + `time`"),
    ],
)
def test_what_norms_of_groups_differ_in_that_read_a_vector_at_each_position_is_told(
    fault: dict[str, Any], words: str
) -> None:
    reference = _timed(of_port=False)
    assert gs.compare(reference, _timed(of_port=True)).verdict == "same"
    found = gs.compare(reference, _timed(of_port=True, **fault))
    assert found.sentence.startswith("Forward first differs at `norm` ("), found.sentence
    assert words in found.sentence, found.sentence
