"""The proof for operations: the value of each equation by `--ops`, and its gradients, for the models of the zoo.

The other way to the same tensors is JAX's own evaluation of the jaxpr (`perturbed`): equation after equation with
something added to each output, or to each operand, by which `jax.grad` differentiates. Loops and branches are not
taken apart there, so models without them are compared with it; the inside of loops is compared with the model unrolled.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope
from tests.oracle.proof.perturbed import Perturbed
from tests.oracle.zoo import ZOO, Case
from tests.support.explicit import COMPILED_QUICKLY
from tests.support.sampled import sampled

ROUNDING = 1e-9
#: What may be left of a gradient whose terms cancel.
CANCELLED = 1e-11
UNROLLED = {name: ZOO[name] for name in ("transformer, one layer", "resnet18, short")}


@pytest.fixture(autouse=True)
def _in_float64(x64: None) -> None:
    """Where nothing but mistakes makes a difference to be seen."""


def differentiated(case: Case, at: Literal["outputs", "operands"]) -> tuple[Perturbed, list[Any], list[Any]]:
    """What the operations of a model make or read, the gradients with respect to something added, and where."""
    arguments = case.arguments()
    leaves, tree = jax.tree.flatten(arguments)
    traced = jax.make_jaxpr(lambda *leaves: case.loss(*jax.tree.unflatten(tree, leaves)))(*leaves)
    twins: list[Perturbed] = []

    def run(added: list[Any] | None) -> tuple[Any, Any]:
        twins.append(Perturbed(at, added))
        return twins[-1].run(traced.jaxpr, traced.consts, leaves)[0], twins[-1].values

    shapes = jax.eval_shape(lambda: run(None)[1])
    nothing = [np.zeros(shape.shape, shape.dtype) for shape in shapes]
    gradients, values = jax.jit(jax.grad(run, has_aux=True), compiler_options=COMPILED_QUICKLY)(nothing)
    return twins[0], values, gradients


@sampled("case", UNROLLED.values(), ids=UNROLLED.keys())
def test_every_operation_has_the_value_and_the_gradient_that_jax_computes(case: Case) -> None:
    twin, outputs, gradients = differentiated(case, "outputs")
    dump = gradscope.capture(case.loss, *case.arguments(), ops=True)
    entries = {entry.name: entry for entry in dump.manifest.entries if entry.family == "activation"}
    seen = [layer for layer in dump.layers if layer.operation]
    names = [name for layer in seen for name in layer.outputs if not entries[name].dtype.startswith(("int", "bool"))]
    assert [entries[name].site.primitive for name in names] == [
        twin.primitives[place.operation] for place in twin.places
    ]
    for name, output, gradient in zip(names, outputs, gradients, strict=True):
        assert_same(dump[f"activation/{name}"], np.asarray(output), name)
        found = dump[f"activation_grad/{name}"] if f"activation_grad/{name}" in dump else np.zeros_like(gradient)
        assert_same(found, np.asarray(gradient), name)


def test_every_operand_has_the_gradient_that_jax_computes_for_that_operand() -> None:
    case = UNROLLED["transformer, one layer"]
    twin, _, gradients = differentiated(case, "operands")
    dump = gradscope.capture(case.loss, *case.arguments(), ops="inputs")
    paths = [layer.path for layer in dump.layers if layer.operation]
    assert [layer.primitive for layer in dump.layers if layer.operation] == twin.primitives
    names = [f"{paths[place.operation]}.{place.position}" for place in twin.places]
    assert {key for key in dump if key.startswith("term/")} <= {f"term/{name}" for name in names}
    for name, gradient in zip(names, gradients, strict=True):
        found = dump[f"term/{name}"] if f"term/{name}" in dump else np.zeros_like(gradient)
        assert_same(found, np.asarray(gradient), name)


def blocks(kernels: Any, x: Any, *, unroll: bool) -> Any:
    """Two checkpointed blocks with a softmax, scanned or one after the other."""

    def block(x: Any, kernel: Any) -> tuple[Any, None]:
        x = x + jnp.tanh(jax.nn.softmax(x @ kernel) @ kernel.T)
        return x, None

    if not unroll:
        with jax.named_scope("block"):
            x, _ = jax.lax.scan(jax.checkpoint(block), x, kernels)
    else:
        for number, kernel in enumerate(kernels):
            with jax.named_scope(f"block[{number}]"):
                x, _ = block(x, kernel)
    return jnp.square(x).mean()


def test_a_scanned_models_operations_are_those_of_the_unrolled_one_iteration_by_iteration() -> None:
    draw = np.random.default_rng(0).standard_normal
    arguments = draw((2, 3, 4)), draw((2, 3))
    scanned, unrolled = (
        gradscope.capture(partial(blocks, unroll=unroll), *arguments, ops="inputs") for unroll in (False, True)
    )
    inside = [key for key in scanned if "/block[" in key and key in unrolled]
    assert len(inside) > 40
    assert {key.split("/")[0] for key in inside} == {"activation", "activation_grad", "term"}
    assert {key.split("/")[-1] for key in inside} >= {"dot_general", "exp", "add", "tanh"}
    for key in inside:
        assert_same(scanned[key], unrolled[key], key)


def assert_same(ours: np.ndarray, theirs: np.ndarray, name: str) -> None:
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype), name
    error = np.abs(np.subtract(ours, theirs, dtype=np.float64)).max(initial=0.0)
    assert error <= ROUNDING * np.abs(theirs).max(initial=0.0) + CANCELLED, name
