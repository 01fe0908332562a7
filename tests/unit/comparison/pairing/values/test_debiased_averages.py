"""Running statistics of Haiku, which are sums and averages of them, are compared with those of another library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.api.reading import Dump
from tests.support.sampled import sampled

_DRAW = np.random.default_rng(5)
KERNELS = [_DRAW.normal(size=shape).astype(np.float32) for shape in ((4, 8), (8, 8))]
SCALES = [_DRAW.uniform(0.5, 1.5, 8).astype(np.float32) for _ in KERNELS]
X = _DRAW.normal(size=(20, 4)).astype(np.float32)
TRAINED = [{"mean": _DRAW.normal(size=8), "var": _DRAW.uniform(0.5, 2, 8)} for _ in KERNELS]
FRESH = [{"mean": np.zeros(8), "var": np.ones(8)} for _ in KERNELS]


def _normalised(name: str, scale: Any, x: Any) -> tuple[Any, dict[str, Any]]:
    with jax.named_scope(name):
        mean, var = x.mean(0), x.var(0)
        y = (x - mean[None]) * (jax.lax.rsqrt(var + 1e-5) * scale)[None]
    return jax.nn.relu(y), {"mean": mean, "var": var}


def _plain(start: list[dict[str, Any]], decay: float = 0.9, *, unbiased: bool = False) -> Dump:
    """Statistics as of Flax, or of PyTorch, whose variances divide by one less."""

    def loss(variables: Any, batch: Any) -> Any:
        x, updated = batch["x"], {}
        for at in range(2):
            with jax.named_scope(f"d{at}"):
                x = x @ variables["params"][f"d{at}"]["kernel"]
            x, found = _normalised(f"n{at}", variables["params"][f"n{at}"]["scale"], x)
            old = variables["batch_stats"][f"n{at}"]
            found["var"] *= 20 / 19 if unbiased else 1
            updated[f"n{at}"] = {each: decay * old[each] + (1 - decay) * found[each] for each in old}
        return jnp.square(x - 0.5).mean(), {"batch_stats": updated}

    params = {f"d{at}": {"kernel": KERNELS[at]} for at in range(2)}
    params |= {f"n{at}": {"scale": SCALES[at]} for at in range(2)}
    return _captured(loss, {"params": params, "batch_stats": {f"n{at}": start[at] for at in range(2)}})


def _evaluated(*, haiku: bool) -> Dump:
    """Norms in evaluation, in Haiku, which returns their state as it is, or in a library that returns none."""

    def loss(variables: Any, batch: Any) -> Any:
        x = batch["x"]
        for at in range(2):
            with jax.named_scope(f"d{at}"):
                x = x @ variables["params"][f"d{at}"]["kernel"]
            with jax.named_scope(f"n{at}"):
                mean, var = (
                    variables["state"][f"norm{at}/~/{each}_ema"]["average"][0]
                    if haiku
                    else variables["state"][f"n{at}"][each]
                    for each in ("mean", "var")
                )
                scale = variables["params"][f"n{at}"]["scale"] * jax.lax.rsqrt(var + 1e-5)
                x = jax.nn.relu((x - mean[None]) * scale[None])
        return jnp.square(x - 0.5).mean(), variables["state"] if haiku else {}

    params: dict[str, Any] = {f"d{at}": {"kernel": KERNELS[at]} for at in range(2)}
    params |= {f"n{at}": {"scale": SCALES[at]} for at in range(2)}
    state = _state(TRAINED) if haiku else {f"n{at}": TRAINED[at] for at in range(2)}
    return _captured(loss, {"params": params, "state": state})


def test_state_that_haiku_returns_as_it_was_needs_no_counterpart() -> None:
    one, other = _evaluated(haiku=False), _evaluated(haiku=True)
    for pair in ((one, other), (other, one)):
        found = gs.compare(*pair)
        assert found.verdict == "same", found.sentence


def _haiku(state: Mapping[str, Any], decays: tuple[float, float] = (0.9, 0.9)) -> Dump:
    """Statistics as of Haiku's `BatchNorm`."""

    def loss(variables: Any, batch: Any) -> Any:
        x, updated = batch["x"], {}
        for at in range(2):
            with jax.named_scope(f"linear{at}"):
                x = x @ variables["params"][f"linear{at}"]["w"]
            x, found = _normalised(f"norm{at}", variables["params"][f"norm{at}"]["scale"][0], x)
            for each, value in found.items():
                name, decay = f"norm{at}/~/{each}_ema", decays[at]
                old = variables["state"][name]
                counter = old["counter"] + 1
                hidden = decay * old["hidden"] + (1 - decay) * value[None]
                average = hidden / (1 - decay ** counter.astype(jnp.float32))
                updated[name] = {"counter": counter, "hidden": hidden, "average": average}
        return jnp.square(x - 0.5).mean(), updated

    params = {f"linear{at}": {"w": KERNELS[at]} for at in range(2)}
    params |= {f"norm{at}": {"scale": SCALES[at][None]} for at in range(2)}
    return _captured(loss, {"params": params, "state": state})


def _captured(loss: Any, variables: Any) -> Dump:
    variables = jax.tree.map(
        lambda leaf: jnp.asarray(leaf, jnp.int32 if np.ndim(leaf) == 0 else jnp.float32), variables
    )
    with jax.numpy_rank_promotion("allow"):
        return gs.capture(loss, variables, {"x": X}, has_aux=True, origins=False)


def _state(start: list[dict[str, Any]] | None, *, counter: int = 0, averages: bool = True) -> dict[str, Any]:
    """What `init` makes, whose averages are those of its own batch, or what is loaded."""
    found: dict[str, Any] = {}
    for at in range(2):
        for each in ("mean", "var"):
            hidden = np.zeros(8) if start is None else start[at][each]
            average = hidden if averages and start is not None else np.full(8, 0.3)
            found[f"norm{at}/~/{each}_ema"] = {"hidden": hidden[None], "average": average[None], "counter": counter}
    return found


@pytest.mark.slow
@sampled("counter", [0, 100_000])
@pytest.mark.parametrize("decay", [0.9, 0.99])
def test_a_port_with_the_same_statistics_agrees(decay: float, counter: int) -> None:
    one, other = _plain(TRAINED, decay), _haiku(_state(TRAINED, counter=counter), (decay, decay))
    for pair in ((one, other), (other, one)):
        found = gs.compare(*pair)
        assert found.verdict == "same", found.sentence
        assert sum(row.compared for row in found.rows if row.family == "aux") == 4


@pytest.mark.slow
@pytest.mark.parametrize("decay", [0.9, 0.99, 0.999])
def test_a_port_with_statistics_as_its_library_begins_them_agrees(decay: float) -> None:
    one, other = _plain(FRESH, decay), _haiku(_state(None), (decay, decay))
    for pair in ((one, other), (other, one)):
        found = gs.compare(*pair)
        assert found.verdict == "same", found.sentence


@pytest.mark.slow
@pytest.mark.parametrize(("start", "counter"), [(TRAINED, 0), (TRAINED, 100_000), (None, 0)])
def test_another_decay_is_told_at_its_norm(start: Any, counter: int) -> None:
    found = gs.compare(_plain(start or FRESH), _haiku(_state(start, counter=counter), (0.9, 0.99)))
    assert found.verdict == "different"
    wrong = {row.name: row.likely for row in found.rows if row.family == "aux" and row.status == "different"}
    assert wrong.keys() == {"batch_stats/n1/mean", "batch_stats/n1/var"}
    assert all(each.startswith("moves 0.1 times as far") for each in wrong.values()), wrong
    assert "it moves 0.1 times as far" in found.sentence


def test_a_decay_that_is_what_the_reference_adds_is_told_as_such() -> None:
    found = gs.compare(_plain(FRESH), _haiku(_state(None), (0.9, 0.1)))
    assert "as where a batch counts 0.9, not 0.1" in found.sentence


@pytest.mark.slow
@sampled("decay", [0.9, 0.99, 0.9999])
def test_a_variance_that_is_divided_by_one_less_is_told(decay: float) -> None:
    for start in (None, TRAINED):
        found = gs.compare(_plain(start or FRESH, decay, unbiased=True), _haiku(_state(start), (decay, decay)))
        assert found.verdict == "different"
        assert "it divides the variance by 20, and the reference by 19" in found.sentence


@pytest.mark.slow
def test_statistics_that_were_not_loaded_are_told() -> None:
    found = gs.compare(_plain(TRAINED), _haiku(_state(None)))
    assert found.verdict == "different"
    assert found.sentence.startswith("The runs start from different state (`batch_stats/n0/mean`"), found.sentence


@pytest.mark.slow
def test_averages_that_were_not_loaded_with_their_sums_count() -> None:
    assert gs.compare(_plain(TRAINED), _haiku(_state(TRAINED, averages=False))).verdict == "different"


@pytest.mark.slow
def test_the_averages_of_two_programs_in_haiku_are_compared() -> None:
    one, other = _haiku(_state(TRAINED)), _haiku(_state(TRAINED, averages=False))
    assert gs.compare(one, _haiku(_state(TRAINED))).verdict == "same"
    assert gs.compare(one, other).verdict == "different"
