"""What the sentence says beside the first difference: the layouts that may have made it, and what follows from it."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.api.reading import Dump
from gradscope.comparison.diagnosis import clauses, sentence
from gradscope.comparison.diagnosis.divergence import first_divergence

_draw = np.random.default_rng(43).normal
NAMES = ("first", "second", "last")
KERNELS = {name: _draw(size=(6, 6)).astype(np.float32) for name in NAMES}
BATCH = {"x": _draw(size=(4, 6)).astype(np.float32), "y": _draw(size=(4, 6)).astype(np.float32)}


def _captured(
    *, ported: bool = False, wrong: str = "", turned: str = "", inside: str = "", function: Any = jnp.tanh
) -> Dump:
    """A chain of dense layers; a port has their kernels transposed, and uses one as if it were not.

    Another program has one kernel transposed, and its layers inside of another.
    """

    def loss(weights: Any, batch: Any) -> Any:
        x = batch["x"]
        for name in NAMES:
            with jax.named_scope(f"{inside}{name}"):
                kernel = weights[f"{inside}{name}"]
                x = x @ (kernel.T if ported and name != wrong else kernel)
            x = jnp.tanh(x) if name != "first" else function(x)
        return jnp.square(x - batch["y"]).mean()

    kernels = {
        f"{inside}{name}": np.ascontiguousarray(each.T if ported or name == turned else each)
        for name, each in KERNELS.items()
    }
    return gs.capture(loss, kernels, BATCH, origins=False)


@pytest.fixture(scope="module")
def reference() -> Dump:
    return _captured()


@pytest.mark.slow
@pytest.mark.parametrize("wrong", NAMES)
def test_of_other_layouts_those_are_told_that_may_have_made_the_first_difference(reference: Dump, wrong: str) -> None:
    found = gs.compare(reference, _captured(ported=True, wrong=wrong))
    assert found.sentence.startswith(f"Forward first differs at `{wrong}` "), found.sentence
    told = f"1 of the {len(NAMES)} parameters in another layout is read there: `{wrong}` (transpose [1, 0])"
    assert told in found.sentence, found.sentence


@pytest.mark.slow
def test_the_layout_of_a_port_is_not_told_of_a_layer_that_reads_another_value(reference: Dump) -> None:
    found = gs.compare(reference, _captured(ported=True, function=jnp.cos))
    assert found.sentence.startswith("Forward first differs at `second` (rel_l2 "), found.sentence
    assert "in what it reads: a step that neither program has an entry for" in found.sentence
    assert "another layout" not in found.sentence


@pytest.mark.slow
def test_a_kernel_that_alone_is_transposed_is_told_whatever_its_name(reference: Dump) -> None:
    found = gs.compare(reference, _captured(turned="second", inside="layers/"))
    assert next(row for row in found.rows if row.name == "second" and row.family == "param").matched_by != "name"
    assert "1 parameter has another layout: `second` (transpose [1, 0])" in found.sentence
    ported = gs.compare(reference, _captured(ported=True, wrong="second", inside="layers/"))
    assert "another layout" not in ported.sentence  # all of the port have it


@pytest.mark.slow
def test_axes_of_one_element_of_a_vector_are_no_other_layout() -> None:
    def captured(shape: tuple[int, ...], added: float) -> Dump:
        def loss(weights: Any, batch: Any) -> Any:
            with jax.named_scope("scaled"):
                x = batch["x"] * weights["scaled"].reshape(1, -1) + added
            return jnp.square(x - batch["y"]).mean()

        return gs.capture(loss, {"scaled": KERNELS["first"][0].reshape(shape)}, BATCH, origins=False)

    found = gs.compare(captured((1, 6), 0.0), captured((6,), 0.1)).sentence
    assert found.startswith("Forward first differs at `scaled` "), found
    assert "layout" not in found, found


def test_the_gradient_of_labels_follows_from_a_difference_that_the_loss_reads(reference: Dump) -> None:
    found = gs.compare(reference, _captured(ported=True, wrong="second"))
    assert "3 parameter gradients and 2 input gradients above it follow from that" in found.sentence
    assert "in addition" not in found.sentence


@pytest.mark.slow
@cache
@pytest.mark.parametrize("stopped", ["kernel", "x"])
def test_it_is_said_in_which_program_no_gradient_arrives_at_a_parameter_or_an_input(stopped: str) -> None:
    def captured(stopped: str = "") -> Dump:
        def loss(weights: Any, batch: Any) -> Any:
            kernel, x = (
                jax.lax.stop_gradient(each) if name == stopped else each
                for name, each in (("kernel", weights["kernel"]), ("x", batch["x"]))
            )
            return jnp.square(jnp.tanh(x @ kernel) - batch["y"]).mean()

        return gs.capture(loss, {"kernel": KERNELS["first"]}, BATCH, origins=False)

    found = gs.compare(captured(), captured(stopped))
    assert f"no gradient arrives at `{stopped}` in the candidate" in found.sentence, found.sentence
    assert f"no gradient arrives at `{stopped}` in the reference" in gs.compare(captured(stopped), captured()).sentence


def _packed(order: tuple[int, int, int], names: tuple[str, str], *, other_layer: float = 1.0) -> Dump:
    """A gated layer whose three kernels are one, in an order that the program does not know, and a dense layer."""
    kernel = np.concatenate([list(KERNELS.values())[index] for index in order], 1)

    def loss(weights: Any, batch: Any) -> Any:
        with jax.named_scope(names[0]):
            a, b, c = jnp.split(batch["x"] @ weights[names[0]], 3, axis=-1)
            x = jnp.tanh(a) * b + jnp.sin(c)
        with jax.named_scope(names[1]):
            x = x @ weights[names[1]] * other_layer
        return jnp.square(x - batch["y"]).mean()

    return gs.capture(loss, {names[0]: kernel, names[1]: KERNELS["last"]}, BATCH, origins=False)


@pytest.mark.slow
def test_parts_of_a_parameter_in_another_order_are_told_where_they_may_have_made_the_first_difference() -> None:
    one, ported = _packed((0, 1, 2), ("gated", "out")), ("Gated_0", "Dense_0")
    told = "; 1 parameter has another layout: `gated` (split 1 into 3, reorder [0, 2, 1], concatenate 1)"
    assert told in gs.compare(one, _packed((0, 2, 1), ported)).sentence
    assert "layout" not in gs.compare(one, _packed((0, 1, 2), ported, other_layer=1.1)).sentence


@pytest.mark.slow
def test_the_order_of_parts_is_not_told_of_a_layer_that_is_known_to_do_something_else() -> None:
    """As of the gates of a GRU, which another framework has in another order."""
    rows = gs.compare(_packed((0, 1, 2), ("gated", "out")), _packed((0, 2, 1), ("Gated_0", "Dense_0"))).rows
    first = first_divergence(rows).forward
    blame: Any = SimpleNamespace(params=None, turned=(), unrecorded="")
    for words, explained, told in (
        ("", False, True),
        ("applies relu to its new states", True, False),
        ("takes its kernel transposed", True, True),
    ):
        known = [replace(row, likely=words, explained=explained) if row is first else row for row in rows]
        assert bool(clauses.rearranged(known, blame)) is told


@cache
def _chaotic(*, reordered: bool = False, slope: float = 0.9) -> Dump:
    """Layers of a tent map, each of which makes 1.9 times of an error, and two ways to compute it.

    Args:
        reordered: Whether the products are added up.
        slope: What is added in the fourth layer.
    """

    def loss(start: Any, batch: Any) -> Any:
        x = start * batch
        for number in range(26):
            with jax.named_scope(f"layer{number}"):
                least = jnp.minimum(x, 1 - x)
                own = slope if number == 3 else 0.9
                x = least + own * least if reordered else (1 + own) * least
        return x.sum()

    return gs.capture(loss, np.float32(1), np.linspace(0.1, 0.9, 64, dtype=np.float32), origins=False)


def test_an_error_that_no_layer_makes_is_said_to_grow_from_rounding() -> None:
    found = gs.compare(_chaotic(), _chaotic(reordered=True))
    assert found.verdict == "different"
    assert "of the error that it reads, each of " in found.sentence
    assert "x, as where rounding grows: " in found.sentence
    assert "rounding grows" not in gs.compare(_chaotic(), _chaotic(reordered=True, slope=0.901)).sentence


@pytest.mark.slow
def test_an_error_of_rounding_to_16_bits_grows_from_what_is_cast_and_a_fault_does_not() -> None:
    def captured(dtype: Any, fourth: float, given: Any = None) -> Dump:
        def loss(start: Any, batch: Any) -> Any:
            x = (start * batch).astype(dtype)
            for number in range(26):
                with jax.named_scope(f"layer{number}"):
                    x = jnp.asarray(fourth if number == 3 else 1.4, dtype) * jnp.minimum(x, 1 - x)
            return x.astype(np.float32).sum()

        batch = jnp.linspace(0.1, 0.9, 64, dtype=np.float32).astype(given or dtype)
        return gs.capture(loss, jnp.asarray(0.77, given or dtype), batch, origins=False)

    reference = captured(np.float32, 1.4)
    # What the program is given is cast, or the program casts it by itself.
    for rounded in (captured(jnp.bfloat16, 1.4), captured(jnp.bfloat16, 1.4, np.float32)):
        found = gs.compare(reference, rounded)
        assert found.verdict == "different"
        assert "x, as where rounding grows: " in found.sentence
    for other in (captured(jnp.bfloat16, 1.48), captured(np.float32, 1.402)):
        assert "rounding grows" not in gs.compare(reference, other).sentence


def test_a_fault_behind_the_last_layer_is_no_growth_of_rounding() -> None:
    def captured(factor: float, scope: str) -> Dump:
        def loss(start: Any, batch: Any) -> Any:
            with jax.named_scope(scope) if scope else contextlib.nullcontext():
                x = batch
                for number in range(12):
                    with jax.named_scope(f"layer{number}"):
                        x = jnp.tanh(x * start)
                return factor * (x * x).sum()

        return gs.capture(loss, np.float32(1), np.linspace(0.1, 0.9, 64, dtype=np.float32), origins=False)

    found = gs.compare(captured(1.0, "model"), captured(1.5, "")).sentence
    assert "Forward first differs at `model` (rel_l2 0.50)" in found
    assert "rounding grows" not in found


def test_of_many_steps_the_side_with_fewer_comes_first_and_a_loop_is_one_name() -> None:
    def rows(status: str, *names: str) -> list[Any]:
        return [SimpleNamespace(name=name, status=status, likely="") for name in names]

    steps = rows("extra", *(f"cell[{at}]/{name}" for at in range(3) for name in ("read", "state")), "flipped")
    layer = rows("missing", "gru.1")
    assert sentence._by_side([*steps, *layer]) == [("reference", layer), ("candidate", steps)]
    assert sentence._by_side([*steps[:2], *layer])[0] == ("candidate", steps[:2])
    words = "`gru.1` is only in the reference and `cell[*]`, `flipped` are only in the candidate"
    assert sentence._alone([*steps, *layer]) == words


@pytest.mark.slow
def test_the_gradient_of_a_parameter_that_no_layer_uses_follows_from_what_differs_forward() -> None:
    def captured(epsilon: float) -> Dump:
        def loss(weights: Any, x: Any) -> Any:
            with jax.named_scope("layer"):
                x = jnp.tanh(x @ weights["layer"]) * (1 + epsilon)
            return jnp.square(x @ weights["head"]).mean()

        draw = np.random.default_rng(3).normal
        weights = {"layer": draw(size=(4, 6)).astype(np.float32), "head": draw(size=(6, 2)).astype(np.float32)}
        return gs.capture(loss, weights, draw(size=(8, 4)).astype(np.float32), origins=False)

    found = gs.compare(captured(0.0), captured(0.01))
    assert "2 parameter gradients and 1 input gradient above it follow from that" in found.sentence
    assert "in addition" not in found.sentence


def _attending(*, factor: float = 1.0, stopped: bool = False) -> Dump:
    """A layer of heads, each weighted by scores with a vector of its own, and a dense layer inside of it."""

    def loss(weights: Any, batch: Any) -> Any:
        with jax.named_scope("heads"):
            with jax.named_scope("project"):
                values = batch["x"] @ weights["heads"]["project"]
            values = values.reshape(len(values), 2, 3)
            scores = factor * (values * weights["heads"]["score"]).sum(-1)
            shares = jax.nn.softmax(scores, 0)
            shares = jax.lax.stop_gradient(shares) if stopped else shares
            x = (shares[..., None] * values).reshape(len(values), 6)
        with jax.named_scope("last"):
            return jnp.square(x @ weights["last"] - batch["y"]).mean()

    heads = {"project": KERNELS["first"], "score": KERNELS["second"][:1].reshape(1, 2, 3)}
    return gs.capture(loss, {"heads": heads, "last": KERNELS["last"]}, BATCH, origins=False)


@pytest.mark.slow
def test_a_gradient_of_a_parameter_of_the_layer_that_is_wrong_differs_with_it() -> None:
    found = gs.compare(_attending(), _attending(stopped=True)).sentence
    assert "1 parameter gradient differs with it, of `heads/score`" in found, found
    assert "in addition" not in found, found


@pytest.mark.slow
def test_a_vector_of_each_head_is_a_bias_of_all() -> None:
    def captured(factor: float, scope: Any) -> Dump:
        def loss(weights: Any, batch: Any) -> Any:
            with jax.named_scope("heads"):
                values = (batch["x"] @ weights["kernel"]).reshape(4, 2, 3)
                with scope("gate"):
                    gate = jax.nn.sigmoid(factor * (values * weights["score"][None]).sum(-1))
                x = gate[..., None] * values
            return jnp.square(x).mean()

        weights = {"kernel": KERNELS["first"], "score": KERNELS["second"][0].reshape(2, 3)}
        return gs.capture(loss, weights, BATCH, origins=False)

    found = gs.compare(captured(1.0, contextlib.nullcontext), captured(1.1, jax.named_scope)).sentence
    assert "`heads`" in found, found
