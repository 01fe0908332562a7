"""What holds for every model of the zoo: the contract of a model file."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models import linear_regression, mlp
from models.transformer import Transformer
from tests.oracle.zoo import ShortResNet
from tests.support.sampled import sampled

ZOO = {
    "linear_regression": linear_regression,
    "mlp": mlp,
    "transformer": Transformer(layers=2, width=16, heads=2, vocabulary=11, length=6),
    "resnet18, short": ShortResNet(depth=18, image_size=32),
}


@pytest.fixture(params=ZOO)
def model(request: pytest.FixtureRequest) -> Any:
    return ZOO[request.param]


def scalar_loss(model: Any, variables: Any, batch: Any) -> jax.Array:
    value = model.loss(variables, batch)
    return value[0] if isinstance(value, tuple) else value


def learned(variables: Any) -> Any:
    return variables.get("params", variables)


@functools.cache
def loss_and_gradients(name: str) -> tuple[jax.Array, Any]:
    model = ZOO[name]
    variables = jax.jit(model.init)(jax.random.key(0))
    batch = jax.jit(model.batch, static_argnums=1)(jax.random.key(1), 16)
    return jax.jit(jax.value_and_grad(lambda v: scalar_loss(model, v, batch)))(variables)


def test_the_strict_rules_are_in_force() -> None:
    with pytest.raises(Exception, match="promotion"):
        jnp.add(jnp.ones(2, jnp.int32), jnp.ones(2, jnp.float32))
    with pytest.raises(ValueError, match="rank"):
        jnp.add(jnp.ones((2, 2)), jnp.ones(2))


@sampled("name", ZOO)
def test_every_parameter_has_a_finite_gradient_that_is_not_zero(name: str) -> None:
    _, gradients = loss_and_gradients(name)
    for path, gradient in jax.tree_util.tree_leaves_with_path(learned(gradients)):
        assert np.isfinite(gradient).all(), path
        assert np.any(gradient), path


@pytest.mark.parametrize(("name", "classes"), {"mlp": 2, "transformer": 11, "resnet18, short": 1000}.items())
def test_an_untrained_classifier_is_about_as_good_as_a_guess(name: str, classes: int) -> None:
    loss, _ = loss_and_gradients(name)
    assert loss.shape == ()
    assert float(loss) == pytest.approx(math.log(classes), rel=0.3)


def test_the_leading_axis_of_a_batch_is_the_example(model: Any) -> None:
    batch = jax.eval_shape(lambda: model.batch(jax.random.key(0), 7))
    assert {leaf.shape[0] for leaf in jax.tree.leaves(batch)} == {7}


def test_a_batch_has_a_size_of_its_own(model: Any) -> None:
    batch = jax.eval_shape(lambda: model.batch(jax.random.key(0)))
    assert all(leaf.shape[0] > 1 for leaf in jax.tree.leaves(batch))


def test_one_key_always_gives_the_same_variables_and_another_key_others() -> None:
    first, again, other = (mlp.init(jax.random.key(seed)) for seed in (0, 0, 1))
    assert jax.tree.all(jax.tree.map(np.array_equal, first, again))
    assert not np.array_equal(first["dense1"]["kernel"], other["dense1"]["kernel"])


def test_in_64_bit_mode_everything_is_computed_in_float64(model: Any, x64: None) -> None:
    jaxpr = jax.make_jaxpr(lambda key: jax.grad(lambda v: scalar_loss(model, v, model.batch(key)))(model.init(key)))
    assert {"f32[", "bf16[", "f16["}.isdisjoint(dtypes_in(str(jaxpr(jax.random.key(0)))))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_the_computation_follows_the_dtype_of_the_variables(model: Any, dtype: Any) -> None:
    variables, batch = jax.eval_shape(lambda: (model.init(jax.random.key(0)), model.batch(jax.random.key(1))))
    narrow = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, dtype), variables)
    loss = jax.eval_shape(lambda v, b: scalar_loss(model, v, b), narrow, batch)
    assert loss.dtype == dtype


def dtypes_in(jaxpr: str) -> set[str]:
    return {name for name in ("f32[", "bf16[", "f16[", "f64[") if name in jaxpr}
