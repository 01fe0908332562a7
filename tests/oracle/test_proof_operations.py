"""The proof for operations: what `--ops` says an equation computed, and its gradient, for every model of the zoo.

The other way to the same tensors is JAX's own evaluation of the jaxpr, written here in a dozen lines: equation after
equation with something added to each output, by which `jax.grad` differentiates. Loops and branches stay whole there,
so models without them are held against it; what happens inside is held against the same model unrolled.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Literal

import gradscope
from tests.oracle.explicit import COMPILED_QUICKLY
from tests.oracle.zoo import ZOO, Case

ROUNDING = 1e-9
#: What may be left of a gradient whose terms cancel.
CANCELLED = 1e-11
SCANNED, TWIN = "transformer, scanned and checkpointed", "transformer, unrolled"
CALLS = {"jit", "pjit", "checkpoint", "remat2"}
UNROLLED = {name: case for name, case in ZOO.items() if "scanned" not in name and name != "resnet50"}


@pytest.fixture(autouse=True)
def _in_float64(x64: None) -> None:
    """Where nothing but mistakes makes a difference to be seen."""


class Perturbed:
    """A jaxpr run with something added to the floating-point outputs of each equation, calls opened in place.

    Args:
        added: What is added to them, in order; None for nothing.
    """

    def __init__(self, added: list[Any] | None = None) -> None:
        self.added = added
        self.outputs: list[Any] = []
        self.primitives: list[str] = []

    def run(self, jaxpr: Any, constants: Any, arguments: Any) -> list[Any]:
        values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*constants, *arguments], strict=True))
        for equation in jaxpr.eqns:
            given = [atom.val if isinstance(atom, Literal) else values[atom] for atom in equation.invars]
            values.update(zip(equation.outvars, self.made(equation, given), strict=True))
        return [atom.val if isinstance(atom, Literal) else values[atom] for atom in jaxpr.outvars]

    def made(self, equation: Any, given: list[Any]) -> list[Any]:
        inner = equation.params.get("jaxpr")
        if inner is not None and equation.primitive.name in CALLS:
            return self.run(getattr(inner, "jaxpr", inner), getattr(inner, "consts", ()), given)
        bound = equation.primitive.get_bind_params(equation.params)
        functions, params = bound if isinstance(bound, tuple) else ((), bound)
        out = equation.primitive.bind(*functions, *given, **params)
        return [self.perturbed(equation, value) for value in (out if equation.primitive.multiple_results else [out])]

    def perturbed(self, equation: Any, value: Any) -> Any:
        if not jnp.issubdtype(value.dtype, jnp.inexact):
            return value
        if self.added is not None:
            value = value + self.added[len(self.outputs)]
        self.outputs.append(value)
        self.primitives.append(equation.primitive.name)
        return value


@pytest.mark.parametrize("case", UNROLLED.values(), ids=UNROLLED.keys())
def test_every_operation_has_the_value_and_the_gradient_that_jax_computes(case: Case) -> None:
    arguments = case.arguments()
    leaves, tree = jax.tree.flatten(arguments)
    traced = jax.make_jaxpr(lambda *leaves: case.loss(*jax.tree.unflatten(tree, leaves)))(*leaves)

    def run(added: list[Any] | None) -> tuple[Any, Any]:
        twin = Perturbed(added)
        loss = twin.run(traced.jaxpr, traced.consts, leaves)[0]
        primitives[:] = twin.primitives
        return loss, twin.outputs

    primitives: list[str] = []
    shapes = jax.eval_shape(lambda: run(None)[1])
    nothing = [np.zeros(shape.shape, shape.dtype) for shape in shapes]
    gradients, outputs = jax.jit(jax.grad(run, has_aux=True), compiler_options=COMPILED_QUICKLY)(nothing)

    dump = gradscope.capture(case.loss, *arguments, ops=True)
    entries = {entry.name: entry for entry in dump.manifest.entries if entry.family == "activation"}
    seen = [layer for layer in dump.layers if layer.operation]
    names = [name for layer in seen for name in layer.outputs if not entries[name].dtype.startswith(("int", "bool"))]
    assert [entries[name].site.primitive for name in names] == primitives
    for name, output, gradient in zip(names, outputs, gradients, strict=True):
        assert_same(dump[f"activation/{name}"], np.asarray(output), name)
        found = dump[f"activation_grad/{name}"] if f"activation_grad/{name}" in dump else np.zeros_like(gradient)
        assert_same(found, np.asarray(gradient), name)


def test_a_scanned_models_operations_are_those_of_the_unrolled_one_turn_by_turn() -> None:
    scanned, unrolled = (
        gradscope.capture(ZOO[name].loss, *ZOO[name].arguments(), ops=True) for name in (SCANNED, TWIN)
    )
    inside = [key for key in scanned if "/block[" in key and key in unrolled]
    assert {key.split("/")[-1] for key in inside} >= {"dot_general", "exp", "add", "tanh"}
    for key in inside:
        assert_same(scanned[key], unrolled[key], key)


def assert_same(ours: np.ndarray, theirs: np.ndarray, name: str) -> None:
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype), name
    error = np.abs(np.subtract(ours, theirs, dtype=np.float64)).max(initial=0.0)
    assert error <= ROUNDING * np.abs(theirs).max(initial=0.0) + CANCELLED, name
