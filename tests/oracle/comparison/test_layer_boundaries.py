"""Two programs compute the same, and their layers end elsewhere: one repeats a value, or adds and multiplies behind."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.api.reading import Dump
from tests.support.sampled import sampled

EXAMPLES, LENGTH, WIDTH = 3, 5, 4


def _drawn(seed: int, *shape: int) -> Any:
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(np.float32)


PARAMS = {
    "embed": _drawn(1, WIDTH, WIDTH), "table": _drawn(2, LENGTH + 1, WIDTH), "head": _drawn(3, WIDTH, WIDTH),
    "bias": _drawn(4, WIDTH),
}  # fmt: skip
BATCH = {"x": _drawn(6, EXAMPLES, LENGTH, WIDTH)}


def _captured(network: Callable[[Any, Any], Any], params: Any = PARAMS, dtype: Any = np.float32) -> Dump:
    def loss(params: Any, batch: Any) -> Any:
        y = network(params, batch["x"])
        return (jnp.square(y).mean() + jnp.sin(y).sum()).astype(np.float32)

    cast = [{name: each.astype(dtype) for name, each in tree.items()} for tree in (params, BATCH)]
    with jax.numpy_rank_promotion("allow"):
        return gs.capture(loss, *cast, origins=False)


@cache
def _with_positions(shape: tuple[int, ...], *, shift: int = 0, name: str = "table") -> Dump:
    """A network that adds positions, of one example, of none, or of all."""

    def network(params: Any, x: Any) -> Any:
        with jax.named_scope("embed"):
            x = x @ params["embed"]
        with jax.named_scope("positions"):
            positions = jnp.broadcast_to(params[name][shift : LENGTH + shift], (*shape, LENGTH, WIDTH)) * 1.0
        with jax.named_scope("head"):
            return jnp.tanh(x + positions) @ params["head"]

    return _captured(network, {key if key != "table" else name: value for key, value in PARAMS.items()})


@pytest.fixture(scope="module")
def positions() -> dict[str, Dump]:
    return {"none": _with_positions(()), "one": _with_positions((1,)), "all": _with_positions((EXAMPLES,))}


@pytest.mark.slow
@pytest.mark.parametrize(("one", "other"), [("one", "all"), ("all", "one"), ("none", "all"), ("all", "none")])
def test_positions_may_be_repeated_for_every_example(positions: dict[str, Dump], one: str, other: str) -> None:
    found = gs.compare(positions[one], positions[other])
    assert found.verdict == "same", found.sentence
    rows = [row for row in found.rows if row.name == "positions" and row.compared]
    assert {(row.family, row.status) for row in rows} == {("activation", "same"), ("activation_grad", "same")}


@pytest.mark.slow
def test_the_parameter_that_has_them_may_have_another_name() -> None:
    found = gs.compare(
        _with_positions((1,), name="positions/weight"), _with_positions((EXAMPLES,), name="positions/table")
    )
    assert found.verdict == "same", found.sentence


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(1,), (EXAMPLES,)])
def test_other_positions_are_a_difference_where_they_are_made(positions: dict[str, Dump], shape: Any) -> None:
    wrong = _with_positions(shape, shift=1)
    for reference in positions.values():
        found = gs.compare(reference, wrong)
        assert found.sentence.startswith("Forward first differs at `positions` (rel_l2 "), found.sentence


@pytest.mark.slow
def test_what_differs_between_examples_is_not_repeated() -> None:
    def captured(rows: int) -> Dump:
        def network(params: Any, x: Any) -> Any:
            with jax.named_scope("mean"):
                mean = x[:rows].mean(1, keepdims=True)
            with jax.named_scope("head"):
                return (x - mean) @ params["head"]

        return _captured(network)

    found = gs.compare(captured(1), captured(EXAMPLES))
    assert "`mean` (the shape is (1, 1, 4) in the reference and (3, 1, 4) in the candidate)" in found.sentence


@cache
def _with_head(
    *,
    bias_inside: bool,
    factor_inside: bool,
    bias: float = 1.0,
    factor: float = 3.0,
    norm: Any = None,
    dtype: Any = np.float32,
) -> Dump:
    """A network that multiplies by a number and adds a bias, each within a layer or behind it."""

    def network(params: Any, x: Any) -> Any:
        with jax.named_scope("embed"):
            x = x @ params["embed"] * (factor if factor_inside else 1.0)
        with jax.named_scope("body"):
            x = x * (1.0 if factor_inside else factor)
            x = jnp.tanh(x) if norm is None else norm(x)
        with jax.named_scope("head"):
            x = x @ params["head"] + (bias * params["bias"] if bias_inside else 0.0)
        with jax.named_scope("end"):
            return x + (0.0 if bias_inside else bias * params["bias"])

    return _captured(network, dtype=dtype)


@pytest.mark.slow
@pytest.mark.parametrize(("inside", "outside"), [(True, False), (False, True)])
def test_a_bias_and_a_factor_may_be_within_a_layer_or_behind_it(inside: bool, outside: bool) -> None:
    one = _with_head(bias_inside=inside, factor_inside=inside)
    found = gs.compare(one, _with_head(bias_inside=outside, factor_inside=outside))
    assert found.verdict == "same", found.sentence
    why = {row.name: row.why for row in found.rows if row.family == "activation" and row.status == "missing"}
    assert why["head"] == "`bias` is added elsewhere"
    assert why["embed"] == "one program multiplies by 3.0 within the layer, and the other outside of it"


@sampled("seed", [2, 3, 4])
def test_a_small_bias_is_found_behind_a_layer_whose_values_are_rounded(seed: int) -> None:
    """Values that are many times as large as the bias have a rounding of a few hundredths of it in bfloat16."""
    random = np.random.default_rng(seed)
    sizes = {"body": (16, 32), "head": (32, 20), "bias": (20,)}
    weights = {name: random.normal(size=size).astype(np.float32) for name, size in sizes.items()}
    weights |= {"body": weights["body"] / 4, "bias": weights["bias"] / 5}
    batch = random.normal(size=(4, 3, 16)).astype(np.float32)

    def captured(dtype: Any, factor: float, *, inside: bool) -> Dump:
        def loss(params: Any, x: Any) -> Any:
            params, x = jax.tree.map(lambda each: each.astype(dtype), (params, x))
            bias = (jnp.asarray(factor, dtype) * params["bias"])[None, None]
            with jax.named_scope("body"):
                x = jnp.tanh(x @ params["body"])
            with jax.named_scope("head"):
                x = x @ params["head"] + (bias if inside else jnp.zeros_like(bias))
            x = (x if inside else x + bias).astype(jnp.float32)
            return jnp.sin(x).sum() + jnp.square(x).mean()

        return gs.capture(loss, weights, batch, origins=False)

    reference = captured(jnp.float32, 1.0, inside=True)
    found = gs.compare(reference, captured(jnp.bfloat16, 1.0, inside=False))
    assert found.verdict == "same", found.sentence
    for factor in (0.0, -1.0, 1.5):
        found = gs.compare(reference, captured(jnp.bfloat16, factor, inside=False))
        assert found.sentence.startswith("Forward first differs at `head` "), found.sentence


@pytest.mark.slow
def test_a_bias_or_a_factor_of_another_size_is_a_difference() -> None:
    one = _with_head(bias_inside=True, factor_inside=True)
    for changed in ({"bias": 0.5}, {"bias": 0.0}):
        found = gs.compare(one, _with_head(bias_inside=False, factor_inside=True, **changed))
        assert found.sentence.startswith("Forward first differs at `head` "), found.sentence
    found = gs.compare(one, _with_head(bias_inside=True, factor_inside=False, factor=1.0))
    assert found.sentence.startswith("Forward first differs at `embed` "), found.sentence


@pytest.mark.slow
@sampled("dtype", [jnp.float32, jnp.float16, jnp.bfloat16])
def test_a_factor_that_a_norm_hides_is_a_difference(dtype: Any) -> None:
    def over_features(x: Any) -> Any:
        return x / jnp.sqrt(jnp.square(x).mean(-1, keepdims=True))

    def over_examples(x: Any) -> Any:
        x = x - x.mean((0, 1))
        return x / jnp.sqrt(jnp.square(x).mean((0, 1)) + 1e-5)

    # A factor of 2 is exact, so that all else agrees bit for bit.
    for norm, factor in ((over_features, 3.0), (over_examples, 2.0)):
        one = _with_head(bias_inside=True, factor_inside=True, factor=factor, norm=norm, dtype=dtype)
        lost = _with_head(bias_inside=True, factor_inside=False, factor=1.0, norm=norm, dtype=dtype)
        found = gs.compare(one, lost)
        assert found.sentence.startswith("Forward first differs at `embed` "), found.sentence
    behind = _with_head(bias_inside=True, factor_inside=False, factor=2.0, dtype=dtype)
    found = gs.compare(_with_head(bias_inside=True, factor_inside=True, factor=2.0, dtype=dtype), behind)
    assert found.verdict == "same", found.sentence


@cache
def _with_one_output(*, inside: bool, factor: float = 1.0) -> Dump:
    """A network of one result, the axis of which is dropped by the layer or behind it."""

    def loss(params: Any, batch: Any) -> Any:
        with jax.named_scope("score"):
            x = jnp.tanh(batch["x"][:, 0]) @ params["embed"][:, :1] * factor
            x = x[:, 0] if inside else x
        with jax.named_scope("end"):
            x = jnp.tanh(x if inside else x[:, 0])
        return jnp.square(x).sum(), {"score": x if inside else x[:, None]}

    return gs.capture(loss, PARAMS, BATCH, origins=False)


@pytest.mark.slow
@pytest.mark.parametrize("inside", [True, False])
def test_an_axis_of_one_element_may_be_dropped_within_a_layer_or_behind_it(inside: bool) -> None:
    one = _with_one_output(inside=inside)
    found = gs.compare(one, _with_one_output(inside=not inside))
    assert found.verdict == "same", found.sentence
    wrong = gs.compare(one, _with_one_output(inside=not inside, factor=1.1))
    assert wrong.sentence.startswith("Forward first differs at `score` (rel_l2 0.10, made here"), wrong.sentence


@cache
def _with_norm(place: str, *, size: float = 1.0, running: bool = False) -> Dump:
    """A network with a norm over the examples behind a bias, which is added in one of several places or in none."""

    def network(params: Any, x: Any) -> Any:
        with jax.named_scope("embed"):
            x = x @ params["embed"] + (size * params["bias"] if place == "within" else 0.0)
        if place == "behind":
            x = x + params["bias"]
        with jax.named_scope("norm"):
            x = x - x.mean((0, 1)) + (0.0 * jax.lax.stop_gradient(params["mean"]) if running else 0.0)
            x = x / jnp.sqrt(jnp.square(x).mean((0, 1)) + 1e-5)
        with jax.named_scope("head"):
            return x @ params["head"]

    left_out = {"bias"} if place == "nowhere" else set[str]()
    params = {name: each for name, each in PARAMS.items() if name not in {"table", *left_out}}
    mean = {"mean": PARAMS["bias"]} if running else {}
    return _captured(network, params | mean)


@pytest.fixture(scope="module")
def with_norm() -> dict[str, Dump]:
    return {place: _with_norm(place) for place in ("within", "behind", "nowhere")}


@pytest.mark.parametrize(
    ("one", "other"), [("within", "behind"), ("behind", "within"), ("within", "nowhere"), ("nowhere", "within")]
)
def test_a_bias_in_front_of_a_norm_over_the_examples_may_be_anywhere(
    with_norm: dict[str, Dump], one: str, other: str
) -> None:
    found = gs.compare(with_norm[one], with_norm[other])
    assert found.verdict == "same", found.sentence
    assert ("1 parameter without effect" in found.sentence) is ("nowhere" in (one, other)), found.sentence


@pytest.mark.slow
@pytest.mark.parametrize("size", [0.0, 2.0])
def test_a_bias_in_front_of_a_norm_that_is_not_used_or_of_another_size_is_a_difference(
    with_norm: dict[str, Dump], size: float
) -> None:
    found = gs.compare(with_norm["within"], _with_norm("within", size=size))
    assert found.sentence.startswith("Forward first differs at `embed` "), found.sentence


def test_a_bias_that_a_running_mean_would_have_is_no_parameter_without_effect() -> None:
    found = gs.compare(_with_norm("within", running=True), _with_norm("nowhere", running=True))
    assert found.sentence.startswith("Forward first differs at `embed` "), found.sentence


@cache
def _residual(*, scaled: bool, lost: float = 1.0) -> Dump:
    """A residual stream whose values are scaled, or whose branches are scaled down; only norms read the stream."""

    def norm(x: Any) -> Any:
        return x / jnp.sqrt(jnp.square(x).mean(-1, keepdims=True))

    def network(params: Any, x: Any) -> Any:
        with jax.named_scope("embed"):
            x = x @ params["embed"] * (3.0 if scaled else 1.0)
        with jax.named_scope("block"):
            x = x + jnp.tanh(norm(x) @ params["head"]) / (1.0 if scaled else 3.0)
        with jax.named_scope("last"):
            x = (x + jnp.tanh(norm(x) @ params["embed"]) / (1.0 if scaled else 3.0)) * lost
        with jax.named_scope("head"):
            return norm(x if scaled else 3.0 * x) @ params["head"]

    return _captured(network)


@pytest.mark.slow
@pytest.mark.parametrize("scaled", [True, False])
def test_a_factor_may_be_that_of_a_residual_stream_or_of_its_branches(scaled: bool) -> None:
    one = _residual(scaled=scaled)
    found = gs.compare(one, _residual(scaled=not scaled))
    assert found.verdict == "same", found.sentence
    wrong = gs.compare(one, _residual(scaled=not scaled, lost=0.5))  # the norm behind it hides this factor
    assert wrong.sentence.startswith("Forward first differs at `last` "), wrong.sentence


@cache
def _residual_stream(names: tuple[str, ...], *, inside: bool, factor: float = 4.0, fault: str = "") -> Dump:
    """A network whose embedding is multiplied within its layer or behind it, of which norms read a residual stream."""
    embed, *blocks, head = names
    params = {name: _drawn(7 + at, WIDTH, WIDTH) for at, name in enumerate(names)}

    def normalised(x: Any, epsilon: float = 1e-9) -> Any:
        return x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + epsilon)

    def network(params: Any, x: Any) -> Any:
        with jax.named_scope(embed):
            x = x @ params[embed] * (factor if inside else 1.0)
        x = x if inside else x * factor
        for at, name in enumerate(blocks):
            with jax.named_scope(f"{name}_norm"):
                h = normalised(x, 0.5 if fault == f"{name}_norm" else 1e-9)
            with jax.named_scope(name):
                h = jnp.tanh(h) @ params[name] if fault != name else jax.nn.silu(h) @ params[name]
            x = x + h
            x = x * (1.5 if fault == "residual" and at == 0 else 1.0)
        with jax.named_scope(head):
            return normalised(x) @ params[head]

    return _captured(network, params)


@sampled("names", [("embed", "one", "two", "head"), ("Dense_0", "Dense_1", "Dense_2", "Dense_3")])
@sampled("fault", ["", "one", "two", "two_norm"])
def test_a_factor_within_a_layer_that_norms_hide_is_not_told_for_a_fault_behind(
    names: tuple[str, ...], fault: str
) -> None:
    reference = _residual_stream(("embed", "one", "two", "head"), inside=False)
    own = fault.replace("one", names[1]).replace("two", names[2])
    found = gs.compare(reference, _residual_stream(names, inside=True, fault=own))
    assert bool(found) is (not fault), found.sentence
    assert not fault or f"Forward first differs at `{fault}` (rel_l2 " in found.sentence, found.sentence


def test_a_factor_that_one_program_alone_has_is_told_though_norms_hide_it() -> None:
    names = ("embed", "one", "two", "head")
    found = gs.compare(_residual_stream(names, inside=True), _residual_stream(names, inside=True, factor=8.0))
    assert "Forward first differs at `embed` (rel_l2 1.0, made here; it is 2 times the reference's)" in found.sentence


@pytest.mark.slow
def test_a_factor_that_one_program_alone_has_is_told_before_another_epsilon() -> None:
    names = ("embed", "one", "two", "head")
    one, other = (_residual_stream(names, inside=False, fault=fault) for fault in ("", "two_norm"))
    assert "Forward first differs at `two_norm` (" in gs.compare(one, other).sentence
    one = _residual_stream(names, inside=True)
    other = _residual_stream(names, inside=True, factor=8.0, fault="two_norm")
    found = gs.compare(one, other)
    assert "Forward first differs at `embed` (rel_l2 1.0, made here; it is 2 times the reference's)" in found.sentence
