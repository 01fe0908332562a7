"""A function that one program has inside of a layer and the other behind it: what is at fault is blamed elsewhere."""

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
from gradscope.comparison.diagnosis.refuting.apart import functions_between
from tests.support.sampled import sampled

_draw = np.random.default_rng(3).normal
WEIGHTS = {
    "up": _draw(size=(5, 6)).astype(np.float32),
    "down": _draw(size=(6, 4)).astype(np.float32),
    "head": _draw(size=(4, 3)).astype(np.float32),
}
SAME = {name: name for name in WEIGHTS}
PORTED = {"up": "Dense_0", "down": "Dense_1", "head": "Dense_2"}
BATCH = {"x": _draw(size=(7, 5)).astype(np.float32)}

Function = Callable[[Any], Any]


def _identity(x: Any) -> Any:
    return x


def _program(
    names: Mapping[str, str], function: Function, *, inside: bool, scale: float = 1.0, dense: bool = True
) -> Dump:
    """Three dense layers, and a function of the first one's output; the second is scaled."""

    def loss(weights: Any, batch: Any) -> Any:
        with jax.named_scope(names["up"]):
            x = batch["x"] @ weights[names["up"]]
            x = function(x) if inside else x
        x = x if inside else function(x)
        with jax.named_scope(names["down"]):
            x = x * (1 if dense else jnp.arange(1.0, 7.0)[None]) @ weights[names["down"]] * scale
        with jax.named_scope(names["head"]):
            x = jnp.tanh(x @ weights[names["head"]])
        return jnp.square(x).mean()

    return gs.capture(loss, {names[name]: WEIGHTS[name] for name in WEIGHTS}, BATCH, origins=False)


def _first(found: Comparison) -> str:
    assert found.verdict == "different"
    assert found.first_divergence.forward is not None
    return found.first_divergence.forward.name


def _of_three_largest(x: Any, *, normalised: bool = True) -> Any:
    """The shares of a router that sends each example to three experts."""
    shares = jax.nn.softmax(x)
    shares = jnp.where(x >= jax.lax.top_k(x, 3)[0][..., 2:], shares, 0.0)
    return shares / shares.sum(-1, keepdims=True) if normalised else shares


@pytest.mark.slow
@sampled(
    "function",
    [jax.nn.relu, jax.nn.softmax, jax.nn.gelu, _of_three_largest, partial(_of_three_largest, normalised=False)],
    ids=["relu", "softmax", "gelu", "three largest", "three largest of all"],
)
def test_a_function_behind_a_layer_is_no_fault_and_a_function_left_out_is(function: Function) -> None:
    reference = _program(SAME, function, inside=True)
    for names in (PORTED, SAME):
        assert gs.compare(reference, _program(names, function, inside=False)).verdict == "same"
    later = gs.compare(reference, _program(PORTED, function, inside=False, scale=1.5))
    assert _first(later) == "down", later.sentence
    assert later.sentence.startswith("Forward first differs at `down`"), later.sentence
    other = gs.compare(_program(SAME, function, inside=False), _program(PORTED, function, inside=True, scale=1.5))
    assert _first(other) == "down", other.sentence
    left_out = gs.compare(reference, _program(PORTED, _identity, inside=False))
    assert _first(left_out) == "up", left_out.sentence


@pytest.mark.slow
def test_another_form_of_a_function_behind_a_layer_is_blamed_on_that_layer() -> None:
    def by_erf(x: Any) -> Any:
        return jax.nn.gelu(x, approximate=False)

    reference = _program(SAME, jax.nn.gelu, inside=True)
    found = gs.compare(reference, _program(PORTED, by_erf, inside=False))
    assert _first(found) == "up", found.sentence
    for function in (by_erf, jax.nn.gelu):
        right = _program(SAME, function, inside=True), _program(PORTED, function, inside=False)
        assert gs.compare(*right).verdict == "same"


@pytest.mark.slow
def test_an_argument_that_the_loss_reads_beside_the_function_is_no_fault() -> None:
    def program(names: Mapping[str, str], *, inside: bool, scale: float = 1.0) -> Dump:
        def loss(weights: Any, batch: Any) -> Any:
            with jax.named_scope(names["up"]):
                logits = batch["x"] @ weights[names["up"]]
                x = jax.nn.softmax(logits) if inside else logits
                penalty = jnp.square(jax.nn.logsumexp(logits, axis=-1)).mean() if inside else 0.0
            if not inside:
                x, penalty = jax.nn.softmax(logits), jnp.square(jax.nn.logsumexp(logits, axis=-1)).mean()
            with jax.named_scope(names["down"]):
                x = x @ weights[names["down"]] * scale
            return jnp.square(x).mean() + 0.1 * penalty

        weights = {names[name]: WEIGHTS[name] for name in ("up", "down")}
        return gs.capture(loss, weights, BATCH, origins=False)

    reference = program(SAME, inside=True)
    assert gs.compare(reference, program(PORTED, inside=False)).verdict == "same"
    assert gs.compare(program(SAME, inside=False), program(PORTED, inside=True)).verdict == "same"


@pytest.mark.slow
def test_a_function_that_no_gradient_shows_is_said() -> None:
    reference = _program(SAME, jnp.tanh, inside=True, dense=False)
    found = gs.compare(reference, _program(PORTED, jnp.tanh, inside=False, scale=1.5, dense=False))
    said = (
        "Forward first differs at `up`, only in the reference, or at `down` (rel_l2 0.50; it is 1.5 times the "
        "reference's; `Dense_1` in the candidate), "
    )
    assert found.sentence.startswith(f"{said}where `up` is the tanh of"), found.sentence
    assert "made here" not in found.sentence


@pytest.mark.slow
@pytest.mark.parametrize("names", [SAME, PORTED])
def test_a_function_that_only_the_loss_reads_is_no_fault_and_one_that_is_left_out_is(names: Mapping[str, str]) -> None:
    def program(names: Mapping[str, str], function: Function, *, inside: bool) -> Dump:
        def loss(weights: Any, batch: Any) -> Any:
            with jax.named_scope(names["up"]):
                x = batch["x"] @ weights[names["up"]]
                x = function(x) if inside else x
            x = x if inside else function(x)
            return jnp.sin(x).mean() + jnp.square(x).sum()

        return gs.capture(loss, {names["up"]: WEIGHTS["up"]}, BATCH, origins=False)

    for inside in (True, False):
        one = program(SAME, jnp.tanh, inside=inside)
        right = gs.compare(one, program(names, jnp.tanh, inside=not inside))
        assert right.verdict == "same", right.sentence
        left_out = gs.compare(one, program(names, _identity, inside=not inside))
        assert left_out.verdict == "different", left_out.sentence


@pytest.mark.slow
def test_a_kernel_without_a_gradient_is_no_difference_of_values_that_are_steps_apart() -> None:
    def program(names: Mapping[str, str], *, inside: bool) -> Dump:
        def loss(weights: Any, batch: Any) -> Any:
            kernels = dict(weights)
            if not inside:
                kernels[names["up"]] = jax.lax.stop_gradient(kernels[names["up"]])
            x = batch["x"]
            for name in ("up", "down"):
                with jax.named_scope(names[name]):
                    x = x @ kernels[names[name]] + (1.3 if inside else 0.0)
                x = x if inside else x + 1.3
            return jnp.square(x).mean()

        return gs.capture(loss, {names[name]: WEIGHTS[name] for name in ("up", "down")}, BATCH, origins=False)

    found = gs.compare(program(SAME, inside=True), program(PORTED, inside=False))
    assert found.sentence.startswith("Backward agrees; 1 parameter gradient differs, of `up`"), found.sentence


def test_functions_are_computed_of_all_elements_only_where_some_show_them(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: dict[str, int] = {}

    def counted(name: str, function: Function) -> Function:
        def call(x: Any) -> Any:
            sizes[name] = max(sizes.get(name, 0), x.size)
            return function(x)

        return call

    for table in ("ELEMENTWISE", "_OF_ROWS"):
        functions = {name: counted(name, function) for name, function in getattr(functions_between, table).items()}
        monkeypatch.setattr(functions_between, table, functions)

    def program(*, inside: bool) -> Dump:
        def loss(weights: Any, batch: Any) -> Any:
            with jax.named_scope("up" if inside else "Dense_0"):
                x = batch["x"] @ weights["up"]
                x = jnp.tanh(x) if inside else x
            x = x if inside else jnp.tanh(x)
            with jax.named_scope("norm" if inside else "LayerNorm_0"):  # no kernel: no gradient could tell
                x = (x - x.mean(0)[None]) * weights["scale"][None] * (1 if inside else 2)
            return jnp.square(x).mean()

        weights = {"up": WEIGHTS["up"], "scale": np.linspace(1, 2, 6, dtype=np.float32)}
        return gs.capture(loss, weights, {"x": np.tile(BATCH["x"], (300, 1))}, origins=False)

    found = gs.compare(program(inside=True), program(inside=False))
    assert "the tanh of `Dense_0`" in {row.likely for row in found.rows if row.name == "up"}
    assert {name for name, size in sizes.items() if size > 3000} == {"tanh"}
    assert {"softmax", "log_softmax", "gelu by erf"} < sizes.keys()


@cache
def _deep(*, inside: bool, stem: float = 1.0, second: float = 1.0, function: Function = jax.nn.relu) -> Dump:
    """A stem and two dense layers of the same names, each with a function inside of it or behind it, and a mean."""

    def loss(weights: Any, batch: Any) -> Any:
        with jax.named_scope("stem"):
            x = batch["x"] * weights["stem"] * stem
        for name, scale in (("first", 1.0), ("second", second)):
            with jax.named_scope(name):
                x = scale * (x @ weights[name])
                x = function(x) if inside else x
            x = x if inside else function(x)
        with jax.named_scope("head"):
            x = x @ weights["head"]
        return jnp.square(x).mean()

    own = {"stem": np.full((1, 5), 1.5, np.float32), "first": WEIGHTS["up"], "second": WEIGHTS["down"]}
    return gs.capture(loss, own | {"head": WEIGHTS["head"]}, BATCH, origins=False)


@pytest.mark.slow
@pytest.mark.parametrize("function", [jax.nn.relu, jnp.tanh], ids=["relu", "tanh"])
@pytest.mark.parametrize("inside", [True, False], ids=["inside", "outside"])
def test_functions_behind_several_layers_of_the_same_names_are_no_fault(function: Function, inside: bool) -> None:
    reference = _deep(inside=inside, function=function)
    found = gs.compare(reference, _deep(inside=not inside, function=function))
    assert found.verdict == "same", found.sentence
    later = gs.compare(reference, _deep(inside=not inside, function=function, second=1.5))
    assert _first(later) == "second", later.sentence


@pytest.mark.slow
@pytest.mark.parametrize("inside", [True, False], ids=["inside", "outside"])
def test_a_function_behind_a_layer_makes_no_error_anew_where_the_layer_inherits_one(inside: bool) -> None:
    found = gs.compare(_deep(inside=inside), _deep(inside=not inside, stem=1.01))
    assert _first(found) == "stem"
    assert "anew" not in found.sentence
    both = gs.compare(_deep(inside=inside), _deep(inside=not inside, stem=1.001, second=1.5))
    assert "error is made anew at `second`" in both.sentence


@pytest.mark.slow
@pytest.mark.parametrize("approximate", [False, True])
def test_two_forms_of_a_function_are_told_although_they_are_equal_within_the_tolerance(approximate: bool) -> None:
    def captured(*, approximate: bool) -> Dump:
        def loss(weights: Any, batch: Any) -> Any:
            with jax.named_scope("up"):
                x = batch["x"] @ weights["up"]
            with jax.named_scope("act"):
                x = jax.nn.gelu(x, approximate=approximate)
            return (x @ weights["down"]).mean()

        return gs.capture(loss, {name: WEIGHTS[name] for name in ("up", "down")}, BATCH, origins=False)

    found = gs.compare(captured(approximate=False), captured(approximate=approximate), tol=1e-2)
    assert found.verdict == "same"
    told = "`act` is gelu by erf in the reference, and gelu by tanh in the candidate"
    assert (told in found.sentence) is approximate, found.sentence


def test_functions_that_differ_in_one_of_many_elements_are_told_apart() -> None:
    x = np.abs(_draw(size=(40, 400))).astype(np.float32)
    x[17, 125] = 40.0

    def captured(act: Function) -> Dump:
        def loss(weights: Any, batch: Any) -> Any:
            with jax.named_scope("scale"):
                y = batch * weights["scale"]
            with jax.named_scope("act"):
                y = act(y)
            return jnp.square(y).mean()

        return gs.capture(loss, {"scale": np.float32(1.0)}, x, origins=False)

    found = gs.compare(captured(jax.nn.relu6), captured(jax.nn.relu))
    assert "it is relu6 in the reference, and relu in the candidate" in found.sentence
