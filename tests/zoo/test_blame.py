"""A fault planted into a module of Linen, NNX or Equinox is blamed on that call of that module."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import gradscope as gs
from gradscope.frameworks.functions_of_modules import FunctionsOfModules
from tests.oracle.isolation.isolating import isolated, wrong
from tests.oracle.isolation.test_blame import wrong_backward

BATCH = jax.random.normal(jax.random.key(1), (5, 3))
#: The call and the pass of each fault: the weight of `shared` is used in two calls.
FAULTS = (("first", "backward"), ("shared", "backward"), ("shared#2", "backward"), ("shared#2", "forward"))


def made(y: Any, kind: str) -> Any:
    """A layer's output with a fault of a kind: in its forward or in its backward pass, or in neither."""
    return {"": lambda y: y, "forward": lambda y: 1.02 * y, "backward": wrong_backward}[kind](y)


def run(net: Any, x: Any, faults: Any) -> Any:
    """The network of every framework: a residual around two calls of one layer."""
    x = net.first(x, faults.get("first", ""))
    y = net.shared(x, faults.get("shared", ""))
    y = net.shared(y, faults.get("shared#2", ""))
    return jnp.square(net.head(x + y, faults.get("head", "")) - 1.0).mean()


def of_linen(faults: Any) -> tuple[Callable[[Any, Any], Any], Any]:
    from flax import linen

    class Layer(linen.Module):
        width: int

        @linen.compact
        def __call__(self, x: Any, kind: str) -> Any:
            return made(jnp.tanh(linen.Dense(self.width)(x)), kind)

    class Net(linen.Module):
        def setup(self) -> None:
            self.first, self.shared, self.head = Layer(4), Layer(4), Layer(2)

        def __call__(self, x: Any) -> Any:
            return run(self, x, faults)

    net = Net()
    return net.apply, net.init(jax.random.key(0), BATCH)


def of_nnx(faults: Any) -> tuple[Callable[[Any, Any], Any], Any]:
    from flax import nnx

    class Layer(nnx.Module):
        def __init__(self, width: int, out: int, rngs: nnx.Rngs) -> None:
            self.dense = nnx.Linear(width, out, rngs=rngs)

        def __call__(self, x: Any, kind: str) -> Any:
            return made(jnp.tanh(self.dense(x)), kind)

    class Net(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.first, self.shared, self.head = Layer(3, 4, rngs), Layer(4, 4, rngs), Layer(4, 2, rngs)

    functions = FunctionsOfModules(lambda key: Net(nnx.Rngs(key)), lambda net, x: run(net, x, faults))
    return functions.loss, functions.init(0)


def of_equinox(faults: Any) -> tuple[Callable[[Any, Any], Any], Any]:
    import equinox as eqx

    class Layer(eqx.Module):
        dense: eqx.nn.Linear

        def __call__(self, x: Any, kind: str) -> Any:
            return made(jnp.tanh(jax.vmap(self.dense)(x)), kind)

    class Net(eqx.Module):
        first: Layer
        shared: Layer
        head: Layer

    def init(key: Any) -> Net:
        keys = jax.random.split(key, 3)
        return Net(*(Layer(eqx.nn.Linear(*size, key=keys[n])) for n, size in enumerate(((3, 4), (4, 4), (4, 2)))))

    functions = FunctionsOfModules(init, lambda net, x: run(net, x, faults))
    return functions.loss, functions.init(jax.random.key(0))


FRAMEWORKS = {"linen": ("flax", of_linen), "nnx": ("flax", of_nnx), "equinox": ("equinox", of_equinox)}


@pytest.fixture(scope="module", autouse=True)
def compiled_in_a_hurry() -> Iterator[None]:
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_faulty_call_alone_is_blamed(framework: str) -> None:
    package, of = FRAMEWORKS[framework]
    pytest.importorskip(package, reason=f"{package} is not installed")
    loss, variables = of({})
    reference = gs.capture(loss, variables, BATCH, origins=False)
    for fault, kind in FAULTS:
        found = isolated(reference, reference, of({fault: kind})[0], variables, BATCH)
        assert wrong(found) == [f"Net/{fault}"], (kind, fault)
        (row,) = found.different
        assert row.forward is not None
        assert (row.forward.status == "same") is (kind == "backward")
