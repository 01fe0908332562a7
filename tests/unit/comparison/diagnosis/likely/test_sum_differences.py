"""Where two values are functions of other sums, the sentence says of which, and whether an entry has them or not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.api.reading import Dump
from gradscope.comparison.diagnosis.likely.sum_differences import SumDifferences
from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.dump.manifest.manifest import Entry, Manifest
from gradscope.dump.record import SiteFacts
from gradscope.dump.sources.memory_dump import MemoryDump
from tests.support.dumps import record
from tests.support.sampled import sampled

DRAW = np.random.default_rng(7)
NAMES = ("first", "block/kernel", "short", "head")
PARAMS = {name: (DRAW.normal(size=(8, 8)) / 2).astype(np.float32) for name in NAMES}
BATCH = DRAW.normal(size=(12, 8)).astype(np.float32)


@cache
def _program(join: Callable[[Any, Any, Any], Any]) -> Dump:
    """Returns a capture of a block around a kernel and a shortcut, which joins them by a function."""

    def loss(params: Any, x: Any) -> Any:
        with jax.named_scope("first"):
            x = jnp.tanh(x @ params["first"])
        with jax.named_scope("block"):
            with jax.named_scope("kernel"):
                y = x @ params["block/kernel"]
            with jax.named_scope("short"):
                z = jnp.sin(x @ params["short"])
            x = join(x, y, z)
        with jax.named_scope("head"):
            return jnp.square(x @ params["head"]).mean()

    return gs.capture(loss, PARAMS, BATCH, origins=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ref", "cand", "words"),
    [
        (
            lambda x, y, _: jax.nn.relu(x + y),
            lambda _x, y, _z: jax.nn.relu(y),
            "the relu of `block/kernel` + `first` in the reference, and the relu of `block/kernel` in the candidate",
        ),
        (
            lambda _x, y, _z: jax.nn.relu(y),
            lambda x, y, _: jax.nn.relu(x + y),
            "the relu of `block/kernel` in the reference, and the relu of `block/kernel` + `first` in the candidate",
        ),
        (
            lambda _, y, z: jnp.tanh(y + z),
            lambda x, y, _: jnp.tanh(x + y),
            "the tanh of `block/kernel` + `block/short` in the reference, and the tanh of `block/kernel` + `first`",
        ),
        (
            lambda x, y, _: jax.nn.relu(x + y),
            lambda x, y, _: jax.nn.silu(x + y),
            "the relu of `block/kernel` + `first` in the reference, and the silu of `block/kernel` + `first`",
        ),
    ],
    ids=["left out", "added", "another", "another function"],
)
def test_the_sentence_tells_of_which_sums_two_values_are_functions(ref: Any, cand: Any, words: str) -> None:
    sentence = gs.compare(_program(ref), _program(cand)).sentence
    assert sentence.startswith("Forward first differs at `block` (rel_l2 "), sentence
    assert f"; it is {words}" in sentence, sentence


@pytest.mark.slow
def test_a_value_that_the_candidate_alone_has_is_named_as_that_has_it() -> None:
    def join(x: Any, y: Any, _: Any) -> Any:
        with jax.named_scope("more"):
            y = jnp.sin(3 * y)
        return jax.nn.relu(x + y)

    sentence = gs.compare(_program(lambda x, y, _: jax.nn.relu(x + y)), _program(join)).sentence
    assert sentence.partition("in the reference, and ")[2].startswith(
        "the relu of `block/more` + `first` in the candidate"
    ), sentence


@pytest.mark.slow
def test_values_that_are_no_such_sums_are_not_said_to_be() -> None:
    sentence = gs.compare(
        _program(lambda x, y, _: jax.nn.relu(x + y)), _program(lambda x, y, _: jax.nn.relu(0.5 * x + y))
    ).sentence
    assert sentence.startswith("Forward first differs at `block` (rel_l2 "), sentence
    assert "it is" not in sentence


def test_a_layer_and_its_last_operation_are_one_term_by_two_names() -> None:
    kernel, stem, other = (DRAW.normal(size=(4, 8)).astype(np.float32) for _ in range(3))

    def source(values: dict[str, np.ndarray]) -> MemoryDump:
        entries = [
            Entry.of(replace(record(name, each, family="activation"), site=SiteFacts(index=at)))
            for at, (name, each) in enumerate(values.items())
        ]
        return MemoryDump(
            Manifest(entries=tuple(entries)), {f"activation/{name}": each for name, each in values.items()}
        )

    ref = source({"kernel": kernel, "stem/tanh": stem, "stem": stem, "more": other, "block": kernel + stem})
    pairs = {key: Match.of(key, key, "name") for key in ref.keys()}  # noqa: SIM118 - no mapping
    changed = {"kernel": 2 * kernel, "stem/tanh": stem, "more": other}
    same = source({**changed, "block": 2 * kernel + stem})
    assert not SumDifferences(Dumps(ref=ref, cand=same), pairs).words(pairs["activation/block"])
    differs = source({**changed, "block": 2 * kernel + other})
    told = "is `kernel` + `stem` in the reference, and `kernel` + `more` in the candidate"
    assert SumDifferences(Dumps(ref=ref, cand=differs), pairs).words(pairs["activation/block"]) == told


@cache
def _scaled(join: Callable[[Any, Any, Any], Any], *, port: bool) -> Dump:
    """Returns a capture of a block that adds a scaled branch, whose channels are last, to an image."""
    order = ("NHWC", "HWIO", "NHWC") if port else ("NCHW", "OIHW", "NCHW")
    drawn = np.random.default_rng(8)
    image = drawn.normal(size=(2, 4, 4, 4)).astype(np.float32)
    weights = {name: drawn.normal(size=(3, 3, 4, 4)).astype(np.float32) for name in ("stem", "deep")}
    weights = {name: each if port else each.transpose(3, 2, 0, 1) for name, each in weights.items()}
    weights |= {"fc": drawn.normal(size=(4, 4)), "scale": drawn.normal(size=4)}

    def loss(weights: Any, x: Any) -> Any:
        def conv(name: str, x: Any) -> Any:
            with jax.named_scope(name):
                return jax.lax.conv_general_dilated(x, weights[name], (1, 1), "SAME", dimension_numbers=order)

        x = conv("stem", x)
        z = conv("deep", x)
        with jax.named_scope("Block_0" if port else "block"):
            with jax.named_scope("fc"):
                y = jax.nn.relu(z if port else z.transpose(0, 2, 3, 1)) @ weights["fc"]
            y = y * weights["scale"]
            x = join(x, y if port else y.transpose(0, 3, 1, 2), z)
        return jnp.square(jnp.sin(x)).mean()

    with jax.numpy_rank_promotion("allow"):
        arrays = {name: np.ascontiguousarray(each, np.float32) for name, each in weights.items()}
        return gs.capture(loss, arrays, image if port else image.transpose(0, 3, 1, 2).copy(), origins=False)


@pytest.mark.slow
@sampled(
    ("join", "words"),
    [
        (lambda _x, y, _z: y, "less `stem`"),
        (lambda x, y, z: x + y + z, "plus `deep`"),
        (lambda _, y, z: z + y, "with `deep` in place of `stem`"),
    ],
    ids=["left out", "added", "another"],
)
def test_a_term_of_a_sum_is_told_whatever_the_others_are_and_in_whatever_layout(join: Any, words: str) -> None:
    reference = _scaled(lambda x, y, _: x + y, port=False)
    assert gs.compare(reference, _scaled(lambda x, y, _: x + y, port=True))
    sentence = gs.compare(reference, _scaled(join, port=True)).sentence
    assert f"; it is the reference's {words};" in sentence, sentence
    scaled = gs.compare(reference, _scaled(lambda x, y, _: x + 1.5 * y, port=True)).sentence
    assert "it is the reference's" not in scaled, scaled


@sampled(
    ("ref", "cand", "words"),
    [
        (lambda x, y, z: x + y + z, lambda _x, y, _z: y, "less `deep` and `stem`"),
        (lambda _x, y, _z: y, lambda x, y, z: x + y + z, "plus `deep` and `stem`"),
        (lambda x, y, z: x - z + y, lambda _x, y, z: z + y, ""),
        (lambda x, y, z: jnp.sin(x) - z + y, lambda x, y, z: x + y + z, ""),
    ],
    ids=["left out", "added", "twice one", "unknown"],
)
def test_several_terms_of_a_sum_are_told(ref: Any, cand: Any, words: str) -> None:
    sentence = gs.compare(_scaled(ref, port=False), _scaled(cand, port=True)).sentence
    assert (f"; it is the reference's {words};" if words else "made here or right before it; `Block_0`") in sentence
