"""FLOPs against XLA's own cost analysis of the compiled program, and against a well-known figure."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from gradscope.inspection.inspect_loss import inspect_loss
from models import mlp, resnet50, transformer
from tests.oracle.zoo import ShortResNet
from tests.support.sampled import sampled

#: XLA counts the body of a scan once, so that a scanned model is no oracle. Of a few dozen numbers, rounding and the
#: polynomials that approximate transcendental functions would be larger than any tolerance.
MODELS = {
    "mlp": mlp,
    "transformer": transformer.Transformer(layers=2, unroll=True, checkpoint=False),
    "resnet18, short": ShortResNet(18, 10, 64),
}

#: Fused programs add or save a few operations per element; nothing of the size of a matrix product may be missing.
FORWARD, BACKWARD = 0.01, 0.05


def shapes(model: Any, size: int = 2) -> Any:
    return jax.eval_shape(lambda: (model.init(jax.random.key(0)), model.batch(jax.random.key(1), size)))


def counted_by_xla(function: Any, *args: Any) -> float:
    analysis: Any = jax.jit(function).lower(*args).compile().cost_analysis()
    return analysis["flops"] + analysis.get("transcendentals", 0.0)


@pytest.mark.slow
@sampled("name", MODELS)
def test_a_models_flops_are_those_of_the_compiled_program(name: str) -> None:
    model = MODELS[name]
    variables, batch = shapes(model)
    totals: Any = inspect_loss(model.loss, variables, batch).totals
    assert totals["flops"] == pytest.approx(counted_by_xla(model.loss, variables, batch), rel=FORWARD)

    def value(params: Any, others: Any, batch: Any) -> Any:
        out = model.loss({**others, "params": params} if others else params, batch)
        return out[0] if isinstance(out, tuple) else out

    others = {collection: tree for collection, tree in variables.items() if collection == "batch_stats"}
    params = variables["params"] if others else variables
    both = counted_by_xla(jax.value_and_grad(value), params, others, batch)
    assert totals["flops"] + totals["backward_flops"] == pytest.approx(both, rel=BACKWARD)


def test_a_scanned_model_costs_what_it_does_unrolled() -> None:
    models = transformer.Transformer(layers=2), MODELS["transformer"]
    scanned, unrolled = (inspect_loss(model.loss, *shapes(model)).totals for model in models)
    assert scanned["flops"] == unrolled["flops"]
    assert scanned["parameters"] == unrolled["parameters"]


@pytest.mark.slow
def test_a_resnet50_has_its_four_billion_multiply_adds() -> None:
    model = resnet50.ResNet()
    totals: Any = inspect_loss(model.loss, *shapes(model, 1)).totals
    assert totals["parameters"] == 25_557_032  # torchvision's
    assert totals["flops"] / 2 == pytest.approx(4.1e9, rel=0.03)  # torchvision's 4.09 count padding, these do not


@pytest.mark.slow
@pytest.mark.parametrize(
    "function",
    [
        lambda w, x: jnp.tanh(x @ w),
        lambda w, x: jax.lax.conv_general_dilated(x[None, None], w[:3, :3][None, None], (2, 2), "SAME"),
        lambda w, x: jax.lax.conv_general_dilated(
            x[None, None], w[:3, :3][None, None], (1, 1), [(2, 1), (0, 2)], lhs_dilation=(2, 3), rhs_dilation=(2, 1)
        ),
        lambda w, x: jnp.einsum("ij,kj,kl->il", w, x, w),
        lambda w, x: jax.lax.reduce_window(w, 0.0, jax.lax.add, (3, 3), (1, 1), "VALID"),
        lambda w, x: jnp.linalg.norm(w * x - 1.0, axis=1),
    ],
)
def test_single_operations_agree_closely(function: Any) -> None:
    w, x = jnp.ones((32, 32)), jnp.ones((32, 32))

    def loss(w: Any, x: Any) -> Any:
        return function(w, x).sum()

    totals: Any = inspect_loss(loss, *jax.eval_shape(lambda: (w, x))).totals
    assert totals["flops"] == pytest.approx(counted_by_xla(loss, w, x), rel=0.01)
