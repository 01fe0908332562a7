"""ResNet: the published networks, batch norm's two ways, and names. That it computes what it should, the proofs say."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models import resnet50
from models.resnet50 import ResNet
from tests.oracle.zoo import ShortResNet

SMALL = ShortResNet(depth=18, classes=10, image_size=32)
SMALL_FORWARD = jax.jit(SMALL.forward, static_argnames="train")
PUBLISHED_PARAMETERS = {18: 11_689_512, 34: 21_797_672, 50: 25_557_032, 101: 44_549_160, 152: 60_192_808}


@pytest.fixture(scope="module")
def small() -> tuple[Any, Any]:
    return jax.jit(SMALL.init)(jax.random.key(0)), jax.jit(SMALL.batch, static_argnums=1)(jax.random.key(1), 4)


@pytest.mark.parametrize(("depth", "count"), PUBLISHED_PARAMETERS.items())
def test_the_number_of_parameters_is_the_published_one(depth: int, count: int) -> None:
    variables = jax.eval_shape(ResNet(depth=depth).init, jax.random.key(0))
    assert sum(leaf.size for leaf in jax.tree.leaves(variables["params"])) == count


def test_the_file_itself_is_resnet50_for_photographs() -> None:
    key = jax.random.key(0)
    variables, batch = jax.eval_shape(resnet50.init, key), jax.eval_shape(lambda: resnet50.batch(key))
    logits, _ = jax.eval_shape(resnet50.forward, variables, batch)
    assert sum(leaf.size for leaf in jax.tree.leaves(variables["params"])) == PUBLISHED_PARAMETERS[50]
    assert batch["image"].shape[1:] == (224, 224, 3)
    assert logits.shape[1:] == (1000,)


def test_the_five_sizes_have_names() -> None:
    assert [
        resnet50.resnet18.depth,
        resnet50.resnet34.depth,
        resnet50.resnet50.depth,
        resnet50.resnet101.depth,
        resnet50.resnet152.depth,
    ] == [18, 34, 50, 101, 152]


def test_an_unknown_depth_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"no ResNet has 49 layers: expected one of \[18, 34, 50, 101, 152\]"):
        ResNet(depth=49)


def test_a_stage_halves_the_image_in_its_3x3_convolution() -> None:
    strided = [layer for block in ResNet().blocks() for layer in block.branch if layer.stride == 2]
    assert [(layer.name, layer.window) for layer in strided] == [("conv2", 3)] * 3


def test_kernels_start_with_he_deviations(small: tuple[Any, Any]) -> None:
    kernel = small[0]["params"]["stage2_block1"]["conv2"]["kernel"]
    assert np.std(kernel) == pytest.approx(math.sqrt(2 / (3 * 3 * 128)), rel=0.01)


def test_batch_norm_gives_each_channel_its_bias_for_mean_and_its_scale_for_deviation() -> None:
    x = 5 + 3 * jax.random.normal(jax.random.key(0), (4, 8, 8, 2))
    params = {"scale": jnp.array([1.0, 2.0]), "bias": jnp.array([0.0, -1.0])}
    stats = {"mean": jnp.zeros(2), "var": jnp.ones(2)}
    y, updated = resnet50.batch_norm(params, stats, x, train=True)
    np.testing.assert_allclose(np.mean(y, axis=(0, 1, 2)), [0, -1], atol=1e-5)
    np.testing.assert_allclose(np.std(y, axis=(0, 1, 2)), [1, 2], rtol=1e-5)
    np.testing.assert_allclose(updated["mean"], 0.1 * np.mean(x, axis=(0, 1, 2)), rtol=1e-5)
    np.testing.assert_allclose(updated["var"], 0.9 + 0.1 * np.var(x, axis=(0, 1, 2)), rtol=1e-5)


def test_in_training_the_logits_of_an_image_depend_on_its_batch_and_in_use_they_do_not(small: tuple[Any, Any]) -> None:
    variables, batch = small
    others = {**batch, "image": batch["image"].at[1:].multiply(3.0)}
    for train, depends in ((True, True), (False, False)):
        logits, moved = (SMALL_FORWARD(variables, given, train=train)[0][0] for given in (batch, others))
        assert (not np.allclose(logits, moved, rtol=1e-4)) == depends


def test_in_use_the_running_statistics_stay(small: tuple[Any, Any]) -> None:
    variables, batch = small
    _, batch_stats = SMALL_FORWARD(variables, batch, train=False)
    assert jax.tree.all(jax.tree.map(np.array_equal, batch_stats, variables["batch_stats"]))


def test_every_operation_lies_in_a_layer_and_parameters_are_nested_by_the_layers_names(small: tuple[Any, Any]) -> None:
    variables, batch = small
    jaxpr = jax.make_jaxpr(SMALL.forward)(variables, batch)
    scopes = {str(equation.source_info.name_stack) for equation in jaxpr.jaxpr.eqns}
    owners = {
        "/".join(part.key for part in path[:-1]) for path, _ in jax.tree_util.tree_leaves_with_path(variables["params"])
    }
    nameless = {"pool", "stem/relu", "stem/pool"} | {
        f"{block.name}/{layer}" for block in SMALL.blocks() for layer in ("relu1", "add", "relu2")
    }
    assert scopes == owners | nameless
