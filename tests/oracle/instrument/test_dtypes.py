"""Every kind of value a layer may hand on: dtypes, keys, empty and 0-d arrays, constants, several at once."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.oracle.engine import (
    Probe,
    assert_close,
    bits,
    check,
    check_compiled,
    check_gradients,
    check_stepwise,
    expected,
    layer,
    observe,
    unprobed,
)
from tests.support.data import evenly
from tests.support.sampled import sampled

INPUTS = evenly(-1.0, 2.0, 4, 3)
WEIGHTS = evenly(-1.0, 1.0, 3, 3)


@pytest.mark.slow
@sampled("dtype", ["bfloat16", "float16"])
def test_a_network_of_one_dtype(dtype: str) -> None:
    def loss(weight: Any, x: Any, probe: Probe = unprobed) -> Any:
        x = layer("first", lambda: jnp.tanh(x @ weight), probe=probe)
        return layer("second", jnp.sin, x, probe=probe).sum()

    check(loss, WEIGHTS.astype(dtype), INPUTS.astype(dtype))


@pytest.mark.slow
def test_a_network_in_double_precision(x64: None) -> None:
    def loss(weight: Any, x: Any, probe: Probe = unprobed) -> Any:
        x = layer("first", lambda: jnp.tanh(x @ weight), probe=probe)
        return layer("second", jnp.sin, x, probe=probe).sum()

    weight, x = np.asarray(WEIGHTS, np.float64), np.asarray(INPUTS, np.float64)
    observation = check(loss, weight, x)
    assert observation.seen["first"].gradient.dtype == np.float64


def test_a_network_that_computes_in_bfloat16_and_keeps_its_weights_in_float32() -> None:
    def loss(weight: Any, x: Any, probe: Probe = unprobed) -> Any:
        low = layer("low", lambda: x.astype(jnp.bfloat16) @ weight.astype(jnp.bfloat16), probe=probe)
        return layer("high", lambda: low.astype(jnp.float32) ** 2, probe=probe).sum()

    observation = check_stepwise(loss, WEIGHTS, INPUTS)  # compiled, the rounding to bfloat16 may be left out
    assert observation.seen["low"].gradient.dtype == jnp.bfloat16
    assert bits(observation.seen["low"].activation) == bits(INPUTS.astype(jnp.bfloat16) @ WEIGHTS.astype(jnp.bfloat16))


@pytest.mark.slow
def test_a_float8_layer() -> None:
    def loss(weight: Any, x: Any, probe: Probe = unprobed) -> Any:
        low = layer("low", lambda: (x @ weight).astype(jnp.float8_e4m3fn), probe=probe)
        return low.astype(jnp.float32).sum()

    observation = check_gradients(loss, WEIGHTS, INPUTS)
    assert observation.seen["low"].activation.dtype == observation.seen["low"].gradient.dtype == jnp.float8_e4m3fn


@pytest.mark.slow
def test_complex_layers() -> None:
    def loss(weight: Any, x: Any, probe: Probe = unprobed) -> Any:
        spectrum = layer("fft", jnp.fft.rfft, x @ weight, probe=probe)
        filtered = layer("filter", lambda: spectrum * jnp.complex64(1 + 2j), probe=probe)
        return layer("magnitude", lambda: jnp.sum(jnp.abs(filtered) ** 2), probe=probe)

    observation = check(loss, WEIGHTS, INPUTS)
    assert observation.seen["filter"].gradient.dtype == np.complex64


@pytest.mark.slow
def test_complex_parameters() -> None:
    def loss(weight: Any, x: Any, probe: Probe = unprobed) -> Any:
        return layer("product", lambda: x.astype(jnp.complex64) @ weight, probe=probe).real.sum()

    check(loss, WEIGHTS.astype(jnp.complex64) * jnp.complex64(1 + 1j), INPUTS)


@pytest.mark.slow
def test_integer_and_boolean_outputs_have_no_gradients() -> None:
    def loss(weight: Any, x: Any, probe: Probe = unprobed) -> Any:
        index = layer("index", lambda: jnp.argmax(x @ weight, axis=1), probe=probe)
        flags = layer("flags", lambda: index > 0, probe=probe)
        chosen = layer("choose", lambda: jnp.where(flags[:, None], x, -x), probe=probe)
        return layer("take", lambda: (chosen @ weight)[jnp.arange(4), index], probe=probe).sum()

    observation = check(loss, WEIGHTS, INPUTS)
    assert observation.seen["index"].activation.dtype == np.int32
    assert observation.seen["index"].gradient is None
    assert observation.seen["flags"].gradient is None


@pytest.mark.slow
@pytest.mark.parametrize("make", [jax.random.key, jax.random.PRNGKey], ids=["typed", "raw"])
def test_keys_are_made_split_and_used_inside_layers(make: Any) -> None:
    def loss(weight: Any, x: Any, key: Any) -> Any:
        first, second = layer("split", lambda: tuple(jax.random.split(key)))
        mask = layer("dropout", lambda: jnp.where(jax.random.bernoulli(first, 0.8, x.shape), x / 0.8, 0.0))
        return (mask @ weight + layer("noise", jax.random.normal, second, (4, 3))).sum()

    def both(weight: Any, batch: Any) -> Any:
        return loss(weight, *batch)

    observation = check_compiled(both, WEIGHTS, (INPUTS, make(7)))
    first, second = jax.random.split(make(7))
    keep = jax.random.bernoulli(first, 0.8, INPUTS.shape)
    assert_close(observation.seen["dropout"].activation, jnp.where(keep, INPUTS / 0.8, 0.0))
    assert_close(observation.seen["noise"].activation, jax.random.normal(second, (4, 3)))
    data = jax.random.key_data(first) if make is jax.random.key else first
    np.testing.assert_array_equal(observation.seen["split.0"].activation, data)
    assert observation.seen["split.0"].gradient is None


@pytest.mark.slow
def test_a_key_made_from_a_seed_inside_the_loss_and_scanned_over() -> None:
    def loss(weight: Any, x: Any) -> Any:
        keys = layer("keys", lambda: jax.random.split(jax.random.key(0), 3))

        def block(carry: Any, key: Any) -> Any:
            return carry + layer("noise", jax.random.normal, key, (4, 3)), key

        noisy, handed = jax.lax.scan(block, x @ weight, keys)
        return noisy.sum() + jax.random.normal(handed[0])

    observation = check_compiled(loss, WEIGHTS, INPUTS)
    for iteration, key in enumerate(jax.random.split(jax.random.key(0), 3)):
        assert_close(observation.seen[f"noise[{iteration}]"].activation, jax.random.normal(key, (4, 3)))


def test_integer_parameters_are_not_differentiated() -> None:
    def loss(variables: Any, x: Any) -> Any:
        return layer("take", lambda: variables["table"][variables["index"]], probe=unprobed).sum() + x.sum()

    variables = {"table": WEIGHTS, "index": jnp.array([0, 2])}
    observation = observe(loss, variables, INPUTS)
    assert set(observation.params) == {"table"}
    np.testing.assert_array_equal(observation.params["table"], [[1, 1, 1], [0, 0, 0], [1, 1, 1]])


@pytest.mark.slow
def test_gradients_of_integers_requested_inside_the_loss() -> None:
    """`float0`, the dtype of a gradient that cannot exist, may be a value of the trace."""

    def loss(weight: Any, x: Any) -> Any:
        def energy(x: Any, index: Any) -> Any:
            return layer("inner", lambda: x[index] @ weight).sum()

        gradient, nothing = layer("grad", jax.grad(energy, argnums=(0, 1), allow_int=True), x, jnp.array([0, 1]))
        assert nothing.dtype == jax.dtypes.float0
        return (gradient**2).sum()

    check_gradients(loss, WEIGHTS, INPUTS)


@pytest.mark.slow
def test_empty_arrays_and_scalars() -> None:
    def loss(weight: Any, x: Any, probe: Probe = unprobed) -> Any:
        empty = layer("empty", lambda: x[:0] @ weight, probe=probe)
        scalar = layer("scalar", lambda: jnp.sum(x @ weight), probe=probe)
        return layer("both", lambda: scalar * 2 + empty.sum(), probe=probe)

    observation = check(loss, WEIGHTS, INPUTS)
    assert observation.seen["empty"].activation.shape == observation.seen["empty"].gradient.shape == (0, 3)
    assert observation.seen["scalar"].activation.shape == ()


@pytest.mark.slow
def test_weakly_typed_values_in_every_kind_of_frame() -> None:
    def loss(weight: Any, batch: Any) -> Any:
        x, flag, iterations = batch
        weak = layer("weak", lambda: jnp.exp(2.0))
        body = lambda carry, _: (layer("scan", lambda: carry * 2.0), carry + 1.0)  # noqa: E731
        scanned, _ = jax.lax.scan(body, weak, None, length=2)
        looped = jax.lax.fori_loop(0, iterations, lambda _, carry: layer("while", lambda: carry + 1.0), 0.0)
        chosen = jax.lax.cond(flag, lambda: layer("yes", lambda: weak * 1.0), lambda: layer("no", lambda: weak + 2.0))
        again = jax.checkpoint(lambda weak: layer("remat", jnp.sin, weak))(weak)
        return (x @ weight).sum() * scanned * looped * chosen * again

    check_gradients(loss, WEIGHTS, (INPUTS, jnp.bool_(True), jnp.int32(3)))


@pytest.mark.slow
def test_a_layer_of_several_outputs() -> None:
    def loss(weight: Any, x: Any, probe: Probe = unprobed) -> Any:
        def several() -> Any:
            made = x @ weight
            return probe("split.0", jnp.sin(made)), probe("split.1", jnp.cos(made)), probe("split.2", made.sum() > 0)

        sine, cosine, flag = layer("split", several)
        return jnp.where(flag, sine, cosine).sum() + cosine.sum()

    check(loss, WEIGHTS, INPUTS)


def test_a_layer_that_hands_on_what_it_was_given() -> None:
    def loss(weight: Any, x: Any, probe: Probe = unprobed) -> Any:
        made = layer("made", lambda: x @ weight, probe=probe)
        same, doubled = layer("pass", lambda: (made, probe("pass", made * 2)))
        return (same * doubled).sum()

    check(loss, WEIGHTS, INPUTS)


@pytest.mark.slow
def test_a_layer_whose_output_is_constant() -> None:
    table = np.arange(3, dtype=np.float32)

    def loss(weight: Any, x: Any) -> Any:
        literal = layer("literal", lambda: 2.0)
        constant = layer("constant", lambda: jnp.asarray(table))
        made = layer("made", lambda: jnp.arange(3.0))
        return ((x @ weight + constant[None] * made[None]) * literal).sum()

    observation = check_gradients(loss, WEIGHTS, INPUTS)
    np.testing.assert_array_equal(observation.seen["made"].activation, [0, 1, 2])
    np.testing.assert_array_equal(observation.seen["made"].gradient, [0, 8, 16])


@pytest.mark.slow
def test_values_used_several_times_and_updated_in_place() -> None:
    def loss(weight: Any, x: Any, probe: Probe = unprobed) -> Any:
        made = layer("made", lambda: x @ weight, probe=probe)
        updated = layer("set", lambda: made.at[0].set(made[1]).at[1:3].add(made[2]), probe=probe)
        return layer("all", lambda: made * updated + jnp.sin(made) + updated, probe=probe).sum()

    check(loss, WEIGHTS, INPUTS)


def test_minus_zero_stays_minus_zero() -> None:
    def loss(weight: Any, x: Any, probe: Probe = unprobed) -> Any:
        made = layer("made", lambda: x @ weight, probe=probe)
        return (layer("scaled", lambda: made * 1.0, probe=probe) * -0.0).sum()

    minus_zero = bits(jnp.full((4, 3), -0.0))
    for jit in (True, False):
        seen = observe(loss, WEIGHTS, INPUTS, jit=jit).seen
        assert bits(seen["made"].gradient) == bits(seen["scaled"].gradient) == minus_zero


@pytest.mark.slow
def test_nan_and_infinity_arrive_where_they_arise() -> None:
    def loss(weight: Any, x: Any, probe: Probe = unprobed) -> Any:
        root = layer("root", jnp.sqrt, x @ weight - 5, probe=probe)
        return layer("log", lambda: jnp.log(root * 0), probe=probe).sum()

    observation = check_gradients(loss, WEIGHTS, INPUTS)
    assert np.isnan(observation.seen["root"].activation).all()
    assert np.isnan(observation.seen["root"].gradient).all()


@pytest.mark.slow
def test_a_gradient_that_does_not_exist_is_not_a_gradient_of_zero() -> None:
    def loss(weights: Any, x: Any) -> Any:
        stopped = layer("stopped", lambda: jax.lax.stop_gradient(layer("before", lambda: x @ weights["used"])))
        dead = layer("dead", lambda: x @ weights["dead"])
        cancelled = layer("cancelled", lambda: x @ weights["cancelled"]) * 0
        metric = layer("metric", lambda: jnp.mean(dead > 0))
        return (x @ weights["used"] * stopped + cancelled).sum(), {"metric": metric}

    weights = dict.fromkeys(("used", "dead", "cancelled", "unused"), WEIGHTS)
    observation = check_gradients(loss, weights, INPUTS)
    assert set(observation.params) == {"used", "cancelled"}
    assert observation.seen["stopped/before"].gradient is None
    assert observation.seen["dead"].gradient is None
    assert observation.seen["stopped"].gradient is not None
    assert not np.asarray(observation.seen["cancelled"].gradient).any()


def test_every_probe_has_a_gradient_where_it_should() -> None:
    """The oracle itself: what is added at a probe moves the loss by the gradient found there."""

    def loss(weight: Any, x: Any, probe: Probe = unprobed) -> Any:
        return (layer("made", lambda: x @ weight, probe=probe) ** 2).sum()

    seen = expected(loss, WEIGHTS, INPUTS)["made"]
    assert_close(seen.gradient, 2 * seen.activation)
