"""Rounding to 16 bits adds up with depth: an error that creeps is rounding, and one that jumps is a fault."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.api.reading import Dump
from gradscope.comparison.judging.compare_options import CompareOptions
from gradscope.comparison.judging.limits.common_factors import CommonFactors
from gradscope.comparison.judging.limits.measured_pairs import measured_pairs
from gradscope.comparison.judging.rounding.accumulated_rounding import accumulated_tolerances
from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.dump.manifest.json_text import as_float
from gradscope.dump.manifest.layer_graph import sources_of
from gradscope.dump.manifest.manifest import Entry, Layer, Manifest
from gradscope.dump.record import SiteFacts
from gradscope.dump.sources.memory_dump import MemoryDump

DEPTH, WIDTH = 12, 16
_draw = np.random.default_rng(16).normal
KERNELS = [(1.8 * _draw(size=(WIDTH, WIDTH)) / math.sqrt(WIDTH)).astype(np.float32) for _ in range(DEPTH)]
INPUTS = _draw(size=(32, WIDTH)).astype(np.float32)


def _carries_nothing(_: str) -> bool:
    return False


def _has_no_factor(_: str, __: Sequence[str]) -> bool:
    return False


def _chain(errors: list[float], *, family: str = "activation", narrow: bool = True) -> dict[str, float]:
    names = [f"layer{number}" for number in range(len(errors))]
    if family == "activation":
        layers = [
            Layer(path=name, index=number, inputs=(names[number - 1],) if number else (), outputs=(name,))
            for number, name in enumerate(names)
        ]
    else:  # gradients are computed in reverse
        layers = [
            Layer(path=name, index=number, inputs=(before,), outputs=(name,))
            for number, (before, name) in enumerate(zip(names[:0:-1], names[-2::-1], strict=True))
        ]
    keys = [f"{family}/{name}" for name in names]
    tolerance = 2e-2 if family == "activation" else 1e-1
    raised = accumulated_tolerances(
        sources_of(layers),
        dict(zip(keys, errors, strict=True)),
        dict.fromkeys(keys, tolerance),
        dict.fromkeys(keys, 2**-8) if narrow else {},
        carries=_carries_nothing,
        has_factor=_has_no_factor,
    )
    return {key.partition("/")[2]: limit for key, limit in raised.items()}


def test_an_error_that_creeps_has_a_tolerance_that_grows_with_the_square_root_of_the_depth() -> None:
    errors = [5e-3 * math.sqrt(number + 1) for number in range(25)]
    raised = _chain(errors)
    assert set(raised) == {f"layer{number}" for number in range(16, 25)}
    assert all(errors[int(name[5:])] <= limit for name, limit in raised.items())
    assert raised["layer24"] == pytest.approx(min(2 * errors[23], 2e-2 * math.sqrt(25)))
    assert not _chain(errors, narrow=False)


def test_an_error_that_jumps_keeps_the_default_and_so_does_what_inherits_it() -> None:
    raised = _chain([5e-3, 8e-3, 9e-3, 9e-2, 9e-2, 9e-2])
    assert all(raised.get(f"layer{number}", 2e-2) < 9e-2 for number in (3, 4, 5))


def test_an_error_beyond_the_square_root_of_the_depth_is_no_rounding() -> None:
    raised = _chain([1.9e-2, 3e-2, 5e-2, 9e-2])
    assert raised["layer1"] == pytest.approx(2e-2 * math.sqrt(2))
    assert raised["layer1"] < 3e-2
    assert not {"layer2", "layer3"} & set(raised)


def _wide(
    errors: list[float],
    carries: Callable[[str], bool] = _carries_nothing,
    has_factor: Callable[[str, Sequence[str]], bool] = _has_no_factor,
) -> dict[str, float]:
    names = [f"layer{number}" for number in range(len(errors))]
    layers = [
        Layer(path=name, index=number, inputs=(names[number - 1],) if number else (), outputs=(name,))
        for number, name in enumerate(names)
    ]
    found = {f"activation/{name}": error for name, error in zip(names, errors, strict=True)} | {"aux/state": 1.5e-4}
    tolerances = dict.fromkeys(found, 1e-4)
    epsilons = dict.fromkeys(found, 1.2e-7)
    raised = accumulated_tolerances(
        sources_of(layers), found, tolerances, epsilons, carries=carries, has_factor=has_factor
    )
    return {key.partition("/")[2]: limit for key, limit in raised.items()}


def test_in_float32_an_error_has_to_creep_from_the_rounding_of_single_operations_on() -> None:
    creeping = [1e-7 * 1.5**number for number in range(25)]
    raised = _wide(creeping)
    assert set(raised) == {*(f"layer{number}" for number in range(18, 25)), "state"}
    assert raised["layer24"] == pytest.approx(2 * creeping[23])
    assert raised["state"] == pytest.approx(2 * creeping[24])
    assert not _wide([1e-7, 5e-6, *creeping[11:]])  # a fault that is small where it begins
    assert max(_wide([1e-7 * 1.5**number for number in range(40)]).values()) < 2e-2


def test_a_factor_of_its_own_is_no_rounding_and_what_inherits_it_keeps_the_default() -> None:
    def has_factor(key: str, before: Sequence[str]) -> bool:
        return (key, *before) == ("activation/layer20", "activation/layer19")

    raised = _wide([1e-7 * 1.5**number for number in range(25)], has_factor=has_factor)
    assert set(raised) == {"layer18", "layer19", "state"}


@pytest.mark.parametrize(
    ("factor", "inherited", "is_own"),
    [(1.003, 1.0, True), (0.997, 1.0, True), (1.003, 1.003, False), (1.0002, 1.0, False), (1.0, 1.0, False)],
)
def test_a_factor_is_most_of_an_error_and_nothing_before_has_it(factor: float, inherited: float, is_own: bool) -> None:
    """Beside errors of 1e-3 that have nothing to do with the values."""
    draw = np.random.default_rng(3).normal
    ref = {name: draw(size=600).astype(np.float32) for name in ("one", "two")}
    noisy = {name: each * factor + np.float32(1e-3) * draw(size=600).astype(np.float32)
             for (name, each), factor in zip(ref.items(), (inherited, factor), strict=True)}  # fmt: skip
    entries = tuple(
        Entry(family="activation", name=name, shape=(600,), dtype="float32", stats={}, site=SiteFacts(index=0))
        for name in ref
    )
    sides = ({f"activation/{name}": each for name, each in side.items()} for side in (ref, noisy))
    one, other = (MemoryDump(Manifest(entries=entries), tensors) for tensors in sides)
    dumps = Dumps(ref=one, cand=other)
    keys = ["activation/one", "activation/two"]
    pairs = measured_pairs(dumps, [Match.of(key, key, "name") for key in keys], CompareOptions())
    errors = {pair.owner: as_float(pair.evidence.metrics["rel_l2"]) for pair in pairs}
    assert CommonFactors(dumps.ref, pairs, errors).is_own(keys[1], keys[:1]) is is_own


def test_a_step_that_carries_its_error_on_may_make_any_multiple_of_it() -> None:
    errors = [1e-6, 2e-6, 9e-5, 6e-4, 9e-4]
    assert not _wide(errors)
    raised = _wide(errors, {"activation/layer2", "activation/layer3"}.__contains__)
    assert raised["layer3"] == 6e-4
    assert raised["layer4"] == pytest.approx(2 * 6e-4)
    assert not {"layer3", "layer4"} & {*_wide(errors, {"activation/layer3"}.__contains__)}  # where it began, it jumped


def test_no_step_is_computed_again_whose_error_no_rounding_may_have() -> None:
    asked: list[str] = []
    _wide([1e-6, 9e-5, 0.5, 0.6], lambda key: asked.append(key) is None)
    assert asked == ["aux/state", "activation/layer1"]


def test_gradients_may_grow_more_up_to_twice_their_tolerance() -> None:
    assert _chain([4e-2, 4e-2, 4e-2, 1.5e-1], family="activation_grad")["layer3"] == pytest.approx(1.6e-1)
    assert _chain([8e-2, 8e-2, 8e-2, 2.9e-1], family="activation_grad")["layer3"] == pytest.approx(2e-1)
    assert _chain([*[9e-2] * 9, 1.5e-1, 1.9e-1, 2.9e-1], family="activation_grad")["layer11"] >= 2.9e-1  # creeps


def test_no_tensor_of_zeros_passes_however_deep() -> None:
    creeping = [min(8e-2 * math.sqrt(number + 1), 0.75) for number in range(110)]
    raised = _chain([*creeping, 1.0], family="activation_grad")
    assert raised["layer109"] == raised["layer110"] == pytest.approx(0.75)


@pytest.mark.parametrize(("error", "same"), [(0.29, True), (0.36, False)])
def test_the_gradient_of_a_parameter_is_held_to_three_times_its_tolerance(error: float, same: bool) -> None:
    first = Layer(path="first", index=0, params=("w",), outputs=("x0",))
    others = [Layer(path=f"{n}", index=n + 1, inputs=(f"x{n}",), outputs=(f"x{n + 1}",)) for n in range(12)]
    errors = {**{f"activation_grad/x{n}": 9e-2 for n in range(13)}, "param_grad/w": error}
    raised = accumulated_tolerances(
        sources_of([first, *others]),
        errors,
        dict.fromkeys(errors, 1e-1),
        dict.fromkeys(errors, 2**-8),
        carries=_carries_nothing,
        has_factor=_has_no_factor,
    )
    assert (error <= raised["param_grad/w"]) is same


def test_a_graph_with_a_cycle_has_the_default() -> None:
    layers = [Layer(path=a, index=0, inputs=(b,), outputs=(a,)) for a, b in (("one", "two"), ("two", "one"))]
    keys = {"activation/one": 3e-2, "activation/two": 3e-2}
    tolerances = dict.fromkeys(keys, 2e-2)
    raised = accumulated_tolerances(
        sources_of(layers),
        keys,
        tolerances,
        dict.fromkeys(keys, 2**-8),
        carries=_carries_nothing,
        has_factor=_has_no_factor,
    )
    assert raised == {}


def _deep(dtype: Any, names: str, *, fault: str = "") -> Dump:
    def loss(weights: Any, batch: Any) -> Any:
        x = batch["x"].astype(dtype)
        for number in range(DEPTH):
            name = names.format(number)
            with jax.named_scope(name):
                y = x @ weights[name]["w"].astype(dtype)
                if number == DEPTH // 2:
                    y = y * jnp.asarray(2.0 if fault == "scale" else 1, dtype)
                    y = jax.lax.stop_gradient(y) if fault == "stop" else y
                x = jnp.tanh(y)
        return jnp.square(x.astype(jnp.float32)).mean()

    return gs.capture(loss, {names.format(n): {"w": w} for n, w in enumerate(KERNELS)}, {"x": INPUTS}, origins=False)


@pytest.fixture(scope="module")
def reference() -> Dump:
    return _deep(jnp.float32, "layers.{}")


@pytest.mark.slow
def test_a_deep_network_in_bfloat16_is_the_same(reference: Dump) -> None:
    found = gs.compare(reference, _deep(jnp.bfloat16, "Block_{}"))
    assert found.verdict == "same", found.sentence
    defaults = {"activation": 2e-2, "activation_grad": 1e-1}
    assert any(row.needed and row.needed > defaults.get(row.family, 1) for row in found.rows)


@cache
def _chaotic(*, parts: int = 1, fault: float = 0.0) -> Dump:
    """A network that makes differences larger, whose sums are made in so many parts."""
    kernels = np.random.default_rng(7).normal(size=(24, 32, 32)).astype(np.float32) * (3.5 / 32**0.5)

    def loss(weights: Any, batch: Any) -> Any:
        x = batch
        for number in range(len(kernels)):
            with jax.named_scope(f"layer{number}"):
                x = jnp.tanh(
                    sum(a @ b for a, b in zip(jnp.split(x, parts, 1), jnp.split(weights[number], parts), strict=True))
                )
                x *= 1 + fault if number == 3 else 1
        return jnp.square(x).mean()

    return gs.capture(loss, list(kernels), np.random.default_rng(8).normal(size=(16, 32)).astype(np.float32))


@pytest.mark.slow
def test_a_network_that_makes_rounding_larger_is_the_same_in_another_order_and_a_small_fault_is_not() -> None:
    reference = _chaotic()
    found = gs.compare(reference, _chaotic(parts=4))
    assert found, found.sentence
    assert max(row.needed or 0 for row in found.rows if row.family == "activation") > 2e-4  # over the default
    assert not gs.compare(reference, _chaotic(parts=4, fault=1e-5))


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["scale", "stop"])
def test_a_fault_in_bfloat16_is_reported_at_its_layer(reference: Dump, fault: str) -> None:
    found = gs.compare(reference, _deep(jnp.bfloat16, "Block_{}", fault=fault))
    assert found.verdict == "different"
    first = found.first_divergence.forward or found.first_divergence.backward
    assert first is not None
    assert first.name == f"layers.{DEPTH // 2}" if fault == "scale" else f"layers.{DEPTH // 2 - 1}", found.sentence
