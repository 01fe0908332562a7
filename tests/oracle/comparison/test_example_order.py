"""A batch whose examples are in another order is the same batch; what the inputs do not prove is a difference."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.api.reading import Dump
from tests.support.sampled import sampled

EXAMPLES, STEPS, WIDTH = 6, 4, 5
ORDER = np.array([3, 0, 5, 1, 4, 2])

_draw = np.random.default_rng(7).normal
WEIGHTS = {
    "in": _draw(size=(WIDTH, WIDTH)).astype(np.float32),
    "cell": _draw(size=(WIDTH, WIDTH)).astype(np.float32) / 3,
    "merged": _draw(size=(WIDTH, WIDTH)).astype(np.float32),
    "norm": np.ones((1, WIDTH), np.float32),
}
BATCH: dict[str, Any] = {
    "x": _draw(size=(EXAMPLES, STEPS, WIDTH)).astype(np.float32),
    "labels": np.array([0, 1, 1, 0, 1, 0], np.int32),
    "scale": np.float32(0.5),
}


def _loss(fault: str, weights: Any, batch: Any, inside: tuple[str, ...] = ()) -> Any:
    """Examples first, time before examples, both merged, and a sum over examples in between.

    Args:
        fault: The layer that is wrong.
        weights: The weights.
        batch: The batch.
        inside: The inputs that the program takes in another order.
    """
    batch = batch | {name: batch[name][ORDER] for name in inside}
    with jax.named_scope("in"):
        x = jnp.tanh(batch["x"] @ weights["in"]) * (1.01 if fault == "in" else 1)

    def cell(h: Any, x: Any) -> Any:
        h = jnp.tanh(h @ weights["cell"] + x)
        return h, h

    with jax.named_scope("loop"):
        _, states = jax.lax.scan(cell, jnp.zeros((EXAMPLES, WIDTH)), x.swapaxes(0, 1))
    with jax.named_scope("merged"):
        flat = states.swapaxes(0, 1).reshape(EXAMPLES * STEPS, WIDTH) @ weights["merged"]
        flat = jnp.roll(flat, 1, 0) if fault == "merged" else flat
    with jax.named_scope("norm"):
        last = flat.reshape(EXAMPLES, STEPS, WIDTH)[:, -1]
        last = (last - last.mean(0, keepdims=True)) / jnp.sqrt(last.var(0, keepdims=True) + 1e-3) * weights["norm"]
    with jax.named_scope("loss"):
        return -(jax.nn.log_softmax(last)[jnp.arange(EXAMPLES), batch["labels"]]).mean() * batch["scale"]


def _captured(batch: Any, fault: str = "", *, inside: tuple[str, ...] = ()) -> Dump:
    return gs.capture(lambda weights, inputs: _loss(fault, weights, inputs, inside), WEIGHTS, batch)


def _moved(*names: str) -> dict[str, Any]:
    return {name: value[ORDER] if name in names else value for name, value in BATCH.items()}


@pytest.fixture(scope="module")
def reference() -> Dump:
    return _captured(BATCH)


@pytest.mark.slow
def test_a_batch_in_another_order_is_the_same_and_the_sentence_says_so(reference: Dump) -> None:
    moved = _moved("x", "labels")
    found = gs.compare(reference, _captured(moved))
    assert found, found.sentence
    assert found.sentence.endswith("; the batch has its examples in another order.")
    reordered = {f"{row.family}/{row.name}" for row in found.rows if "another order" in row.made_by}
    assert {"input/x", "activation/in", "activation_grad/in", "activation/merged", "input_grad/x"} <= reordered
    assert not any(name.startswith("param") for name in reordered)
    # What the rows say is what NumPy says of the two batches.
    row = next(row for row in found.rows if (row.family, row.name) == ("input", "x"))
    assert row.metrics["bit_equal"] is True
    inverse = np.argsort(ORDER)
    assert np.array_equal(moved["x"][inverse], BATCH["x"])


@pytest.mark.slow
@sampled("fault", ["in", "merged"])
def test_a_fault_behind_a_batch_in_another_order_is_found_at_its_layer(reference: Dump, fault: str) -> None:
    found = gs.compare(reference, _captured(_moved("x", "labels"), fault))
    assert not found
    assert found.first_divergence.forward is not None
    assert found.first_divergence.forward.name == fault
    assert "the batch has its examples in another order" in found.sentence


@pytest.mark.slow
def test_a_program_may_take_the_examples_of_a_batch_in_another_order(reference: Dump) -> None:
    found = gs.compare(reference, _captured(BATCH, inside=("x", "labels")))
    assert found.verdict == "same", found.sentence
    assert found.sentence.endswith("; the candidate takes the examples of the batch in another order.")


@pytest.mark.slow
def test_gradients_tell_equal_examples_apart_where_a_program_takes_them_in_another_order() -> None:
    tokens, labels = np.array([3, 1, 3, 3, 0, 1, 2, 3]), np.array([0, 1, 1, 0, 1, 0, 0, 2])
    table, kernel = _draw(size=(4, 6)).astype(np.float32), _draw(size=(6, 3)).astype(np.float32)

    def captured(order: Any, fault: float = 1.0) -> Dump:
        def loss(weights: Any, batch: Any) -> Any:
            with jax.named_scope("embed"):
                x = weights["embed"][batch["x"][order]]
            with jax.named_scope("head"):
                x = x @ weights["head"] * fault
            return -jax.nn.log_softmax(x)[jnp.arange(8), batch["y"][order]].mean()

        return gs.capture(loss, {"embed": table, "head": kernel}, {"x": tokens, "y": labels})

    reversed_, mixed = np.arange(8)[::-1], np.array([2, 7, 0, 4, 1, 6, 3, 5])
    for order in (reversed_, mixed):
        found = gs.compare(captured(np.arange(8)), captured(order))
        assert found.verdict == "same", found.sentence
        assert found.sentence.endswith("; the candidate takes the examples of the batch in another order.")
    faulty = gs.compare(captured(np.arange(8)), captured(mixed, 1.01))
    assert faulty.sentence.startswith("Forward first differs at `head`"), faulty.sentence


@pytest.mark.slow
def test_a_fault_is_at_its_layer_where_a_program_takes_the_examples_in_another_order(reference: Dump) -> None:
    found = gs.compare(reference, _captured(BATCH, "merged", inside=("x", "labels")))
    assert found.sentence.startswith("Forward first differs at `merged`"), found.sentence


@pytest.mark.slow
@pytest.mark.parametrize(("inside", "first"), [("x", "`in`"), ("labels", "`loss`")])
def test_a_program_that_takes_one_input_in_another_order_differs(reference: Dump, inside: str, first: str) -> None:
    found = gs.compare(reference, _captured(BATCH, inside=(inside,)))
    assert found.sentence.startswith(f"Forward first differs at {first}"), found.sentence
    assert "takes the examples" not in found.sentence


@pytest.mark.slow
@pytest.mark.parametrize(("moved", "stays"), [("x", "labels"), ("labels", "x")])
def test_an_input_that_moved_alone_is_told_from_a_batch_in_another_order(
    reference: Dump, moved: str, stays: str
) -> None:
    found = gs.compare(reference, _captured(_moved(moved)))
    assert found.verdict == "different"
    assert found.sentence.startswith(f"`{moved}` has its rows in another order, and `{stays}` has not. ")
    assert "examples in another order" not in found.sentence


def test_batches_of_other_sizes_or_with_some_examples_in_common_are_told_in_a_sentence() -> None:
    def captured(first: int, last: int) -> Dump:
        rows = {
            "x": np.arange(24.0, dtype=np.float32).reshape(8, 3)[first:last],
            "y": np.arange(8, dtype=np.float32)[first:last],
        }
        return gs.capture(lambda w, batch: ((batch["x"] @ w - batch["y"]) ** 2).mean(), np.ones(3, np.float32), rows)

    smaller, overlapping = (gs.compare(captured(0, 6), captured(*part)) for part in ((0, 4), (2, 8)))
    advice = "Dump both with one batch: the same `--seed` and `--batch-size`, or `--data`."
    why = "so that all that is computed from them differs"
    assert smaller.sentence == f"The batch has 6 examples in the reference and 4 in the candidate, {why}. {advice}"
    assert overlapping.sentence.startswith("The batches have 4 of 6 examples in common. The runs start from different")
    assert overlapping.sentence.endswith(f". {advice}")


@pytest.mark.parametrize(
    ("ref", "cand"),
    [
        (np.float32(2.0), np.ones(3, np.float32)),
        (np.array([1.0, np.nan, 3.0], np.float32), np.array([np.nan, 1.0, 3.0], np.float32)),
    ],
    ids=["no axis", "nan"],
)
def test_of_inputs_without_examples_and_of_the_same_examples_no_difference_is_stated(ref: Any, cand: Any) -> None:
    first, second = (gs.capture(lambda w, x: jnp.sum(w * x), np.float32(3.0), each) for each in (ref, cand))
    assert gs.compare(first, second).sentence.startswith("The runs start from different inputs (`value`)")


def test_labels_that_stay_where_their_examples_moved_are_a_difference(reference: Dump) -> None:
    found = gs.compare(reference, _captured(_moved("x")))
    assert not found
    assert found.first_divergence.forward is not None
    assert found.first_divergence.forward.name == "loss"


@pytest.mark.slow
def test_inputs_that_moved_in_two_ways_or_changed_by_a_bit_prove_no_order(reference: Dump) -> None:
    apart = {**_moved("x"), "labels": np.array([1, 1, 0, 0, 1, 1], np.int32)}
    changed = _moved("x", "labels")
    changed["x"] = np.where(changed["x"] == changed["x"][0, 0, 0], np.nextafter(changed["x"], 9), changed["x"])
    for batch in (apart, changed):
        found = gs.compare(reference, _captured(batch))
        assert not found
        assert "another order" not in found.sentence


def test_a_program_that_shuffles_by_itself_differs(reference: Dump) -> None:
    def loss(weights: Any, inputs: Any) -> Any:
        return _loss("", weights, {**inputs, "x": inputs["x"][ORDER]})

    shuffled = gs.capture(loss, WEIGHTS, BATCH)
    assert not gs.compare(reference, shuffled)


SIDE, CHANNELS = 5, 5
_KERNELS = {
    "conv": _draw(size=(CHANNELS, 3, 3, 3)).astype(np.float32),
    "up": _draw(size=(CHANNELS, CHANNELS, 3, 3)).astype(np.float32),
}
_IMAGES = _draw(size=(EXAMPLES, 3, SIDE, SIDE)).astype(np.float32)
_TARGETS = _draw(size=(EXAMPLES, CHANNELS)).astype(np.float32)


def _convolved(x: Any, kernel: Any, layouts: tuple[str, str, str]) -> Any:
    return jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=layouts)


@cache
def _channels_first() -> Dump:
    """An image network whose images, of as many channels as rows, have their channels first."""

    def loss(weights: Any, batch: Any) -> Any:
        with jax.named_scope("conv"):
            x = jnp.tanh(_convolved(batch["x"], weights["conv"]["weight"], ("NCHW", "OIHW", "NCHW")))
        with jax.named_scope("up"):
            x = jnp.sin(_convolved(x, weights["up"]["weight"], ("NCHW", "IOHW", "NCHW")))
        return jnp.square(x.mean((2, 3)) - batch["y"]).mean()

    weights = {name: {"weight": kernel} for name, kernel in _KERNELS.items()}
    return gs.capture(loss, weights, {"x": _IMAGES, "y": _TARGETS})


@cache
def _channels_last(fault: str = "") -> Dump:
    """A port that has them last, with the examples in another order and under other names."""

    def loss(weights: Any, batch: Any) -> Any:
        with jax.named_scope("conv"):
            x = _convolved(batch["image"], weights["conv"]["kernel"], ("NHWC", "HWIO", "NHWC"))
            x = jnp.tanh(x * (1.02 if fault == "conv" else 1))
        with jax.named_scope("up"):
            x = _convolved(x, weights["up"]["kernel"], ("NHWC", "HWIO", "NHWC"))
            x = jnp.sin(jnp.roll(x, 1, 0) if fault == "up" else x)
        return jnp.square(x.mean((1, 2)) - batch["target"]).mean()

    orders = {"conv": (2, 3, 1, 0), "up": (2, 3, 0, 1)}
    weights = {name: {"kernel": kernel.transpose(orders[name]).copy()} for name, kernel in _KERNELS.items()}
    images = _IMAGES[ORDER].transpose(0, 2, 3, 1).copy()
    return gs.capture(loss, weights, {"image": images, "target": _TARGETS[ORDER]})


@pytest.mark.slow
def test_a_port_in_another_layout_agrees_in_another_order_of_the_examples() -> None:
    found = gs.compare(_channels_first(), _channels_last())
    assert found.verdict == "same", found.sentence
    assert found.sentence.endswith("; the batch has its examples in another order.")
    assert {row.name: row.counterpart for row in found.rows if row.family == "input"} == {"x": "image", "y": "target"}


@sampled("fault", ["conv", "up"])
def test_a_fault_of_a_port_in_another_layout_is_told_in_another_order_of_the_examples(fault: str) -> None:
    found = gs.compare(_channels_first(), _channels_last(fault))
    assert found.verdict == "different"
    assert f"Forward first differs at `{fault}`" in found.sentence, found.sentence


@pytest.mark.slow
def test_batches_with_other_random_keys_are_compared() -> None:
    def captured(seed: int) -> Dump:
        def loss(weights: Any, batch: Any) -> Any:
            noise = jax.vmap(lambda key: jax.random.normal(key, (WIDTH,)))(batch["keys"])
            return jnp.square((batch["x"][:, 0] + noise) @ weights["in"]).mean()

        keys = jax.random.split(jax.random.key(seed), EXAMPLES)
        return gs.capture(loss, {"in": WEIGHTS["in"]}, {"x": BATCH["x"], "keys": keys}, origins=False)

    found = gs.compare(captured(0), captured(1))
    assert found.verdict == "different"
    assert "The runs start from different inputs (`keys`)" in found.sentence
