"""Core statistics inside a step: on the host and on the device, the numbers are NumPy's."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import gradscope as gs
from gradscope.instrument.statistics import core_statistics as core
from gradscope.instrument.statistics.core_statistics import CORE_NUMBERS, core_numbers, core_statistics
from gradscope.instrument.statistics.full_statistics import full_statistics
from gradscope.instrument.statistics.histogram_counts import statistics_and_histogram

PLACES = {"host": core._on_host, "device": core._on_device}
SHAPES = [(), (1,), (7,), (3, 1500), (2, 3, 4), (0,), (2, 0)]


@pytest.fixture(params=PLACES)
def measure(request):
    """Any implementation, jitted; `platform_dependent` would choose for us."""
    place = PLACES[request.param]
    measured = jax.jit(lambda x: place(core.as_bytes(x)))
    return lambda array: core_numbers(np.asarray(measured(jnp.asarray(array))))


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_numbers_are_those_of_numpy_in_float64(measure, shape):
    values = np.random.default_rng(0).normal(3, 2, shape).astype(np.float32)
    numbers = measure(values)
    assert numbers.finite == values.size
    if values.size:
        wide = values.astype(np.float64)
        expected = [wide.mean(), wide.std(), np.sqrt((wide**2).mean()), wide.min(), wide.max()]
        found = [numbers.mean, numbers.std, numbers.rms, numbers.minimum, numbers.maximum]
        np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.slow
def test_squares_neither_overflow_nor_vanish(measure):
    draws = np.random.default_rng(0).normal(size=600)
    for scale in (1e-30, 1e-25, 1e-19, 1e-10, 1.0, 1e10, 1e19, 1e25, 1e32, 1e35):
        for values in (draws * scale, (1 + draws / 2) * scale, np.geomspace(1 / scale, scale, draws.size)):
            wide = values.astype(np.float32).astype(np.float64)
            numbers = measure(values.astype(np.float32))
            expected = [wide.mean(), wide.std(), np.sqrt((wide**2).mean())]
            found = [numbers.mean, numbers.std, numbers.rms]
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * wide.std())


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1e-25, 1.0, 1e25])
def test_those_of_several_tensors_together_are_those_of_all_elements(scale):
    parts = [(np.random.default_rng(n).normal(n, 1 + n, 500) * scale).astype(np.float32) for n in range(3)]
    merged = core_numbers(np.asarray(core.merged_statistics([jax.jit(core_statistics)(each) for each in parts])))
    wide = np.concatenate(parts).astype(np.float64)
    expected = [wide.mean(), wide.std(), np.sqrt((wide**2).mean()), wide.min(), wide.max()]
    found = [merged.mean, merged.std, merged.rms, merged.minimum, merged.maximum]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_what_is_not_finite_is_counted_and_left_out(measure):
    values = np.array([1.0, np.nan, np.inf, -np.inf, 0.0, -0.0, 3.0], np.float32)
    numbers = measure(values)
    assert (numbers.finite, numbers.nan, numbers.inf, numbers.zeros) == (4, 1, 2, 2)
    assert numbers.mean == pytest.approx(1.0)
    assert (numbers.minimum, numbers.maximum) == (0.0, 3.0)


def test_a_large_mean_does_not_drown_a_small_spread(measure):
    values = (1000 + 0.01 * np.random.default_rng(1).normal(size=20_000)).astype(np.float32)
    assert measure(values).std == pytest.approx(values.astype(np.float64).std(), rel=1e-2)


@pytest.mark.slow
@pytest.mark.parametrize("at", [(0, -1), (0, 10_000), (10_000, -1)])
def test_nor_does_it_where_its_ends_are_not_finite(measure, at):
    values = (1e6 + np.random.default_rng(1).normal(size=20_000)).astype(np.float32)
    values[[*at]] = np.nan, np.inf
    known = values[np.isfinite(values)].astype(np.float64)
    assert measure(values).std == pytest.approx(known.std(), rel=1e-2)


@pytest.mark.slow
def test_counts_beyond_what_float32_can_count_are_exact(measure):
    many = 2**24 + 3
    numbers = measure(np.zeros(many, np.int8).astype(jnp.float16))
    assert (numbers.finite, numbers.zeros) == (many, many)


def test_a_float16_tensor_of_large_values_does_not_overflow(measure):
    values = np.tile(np.array([6e4, -6e4], np.float16), 5000)
    assert measure(values).rms == pytest.approx(6e4, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e5m2", "float4_e2m1fn"])
def test_narrow_floats_are_measured_as_they_are(measure, dtype):
    numbers = measure(jnp.array([2.0, -1.0, 0.0, -0.0], dtype))
    assert (numbers.minimum, numbers.maximum, numbers.zeros, numbers.mean) == (-1, 2, 2, 0.25)


def test_of_a_complex_tensor_the_magnitudes_are_measured(measure):
    numbers = measure(np.array([3 + 4j, 0, -5j], np.complex64))
    assert numbers.maximum == pytest.approx(5)
    assert numbers.zeros == 1


def test_integers_are_measured_as_numbers():
    numbers = core_numbers(np.asarray(jax.jit(core_statistics)(jnp.array([1, 2, 0], jnp.int32))))
    assert (numbers.minimum, numbers.maximum, numbers.zeros) == (0, 2, 1)


def test_a_jax_that_hands_out_no_buffers_gives_the_same_numbers(monkeypatch):
    values = jnp.arange(7.0)
    expected = jax.jit(core._on_host)(values)
    monkeypatch.setattr("gradscope.instrument.host_calls.buffer_callback", None)
    traced_anew = partial(core._on_host)
    np.testing.assert_array_equal(jax.jit(traced_anew)(values), expected)


@pytest.mark.slow
def test_it_can_be_vmapped():
    values = np.random.default_rng(2).normal(size=(4, 50)).astype(np.float32)
    vectors = jax.jit(jax.vmap(core_statistics))(jnp.asarray(values))
    np.testing.assert_allclose(CORE_NUMBERS["mean"](vectors), values.mean(axis=1), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(CORE_NUMBERS["l2"](vectors), np.linalg.norm(values, axis=1), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("observer", [core_statistics, full_statistics, statistics_and_histogram])
@pytest.mark.parametrize("spec", [("data",), (None, "data")])
def test_the_axes_of_a_tensor_may_be_split_explicitly(observer, spec):
    """Each operation on such a tensor has to state how its result is split; JAX checks that when it traces."""
    mesh = jax.sharding.AbstractMesh((2,), ("data",), axis_types=(AxisType.Explicit,))
    sharding = NamedSharding(mesh, PartitionSpec(*spec))
    with jax.sharding.use_abstract_mesh(mesh):
        vector = jax.eval_shape(observer, jax.ShapeDtypeStruct((4, 6), jnp.float32, sharding=sharding))
        alone = jax.eval_shape(observer, jax.ShapeDtypeStruct((4, 6), jnp.float32))
    assert (vector.shape, vector.dtype) == (alone.shape, alone.dtype)


def test_no_copy_of_a_tensor_is_made_to_observe_it():
    def loss(params, x):
        with jax.named_scope("layer"):
            return jnp.sum(jnp.tanh(x @ params["kernel"]) ** 2)

    text = jax.jit(gs.value_and_grad(loss)).lower({"kernel": jnp.ones((3, 2))}, jnp.ones((4, 3))).as_text()
    assert "callback" in text
    assert "bitcast_convert" not in text


@pytest.mark.slow
def test_a_loop_reads_no_constants_of_the_size_of_what_is_measured():
    def loss(weights, x):
        return jax.lax.scan(lambda carry, weight: (jnp.tanh(carry @ weight), None), x, weights)[0].sum()

    weights, x = jnp.ones((3, 4, 4)), jnp.ones((5, 4))
    program = jax.make_jaxpr(gs.value_and_grad(loss))(weights, x)
    loops = [each for each in program.jaxpr.eqns if each.primitive.name == "scan"]
    # The carry has that size, or its gradient.
    assert [[each.aval.shape for each in loop.invars].count(x.shape) for loop in loops] == [1, 1]
