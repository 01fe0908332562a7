"""One network of Linen, NNX and Equinox whose modules make a planted error, each by its framework's own constructs.

A dense layer, a layer that is called twice, a bilinear layer, a scanned block of a layer and a residual sum, a branch,
a head. A *fault* is the name of a call of a module and the pass that is wrong there; `loop[*]/cell` is every iteration
of a scanned module, and `loop[1]/cell` is one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from gradscope.frameworks.functions_of_modules import FunctionsOfModules
from tests.oracle.isolation.test_blame import wrong_backward

BATCH = jax.random.normal(jax.random.key(1), (5, 3))
#: The number of iterations of the scanned block, and the one that is wrong by itself.
ITERATIONS, WRONG = 3, 1

#: Which pass is wrong, by the name of a call.
Faults = Mapping[str, str]
#: A loss of variables and a batch, and its variables.
Made = tuple[Callable[[Any, Any], Any], Any]


def made(y: Any, kind: str) -> Any:
    """A module's output with a fault of a kind: in its forward or in its backward pass, or in neither."""
    return {"": lambda y: y, "forward": lambda y: 1.02 * y, "backward": wrong_backward}[kind](y)


def made_in(y: Any, faults: Faults, name: str, number: Any) -> Any:
    """The output of a module of the scanned block in one iteration."""
    y = made(y, faults.get(f"loop[*]/{name}", ""))
    kind = faults.get(f"loop[{WRONG}]/{name}", "")
    return jnp.where(number == WRONG, made(y, kind), y) if kind else y


def run(net: Any, x: Any, faults: Faults) -> Any:
    """The network of every framework."""
    x = net.dense(x, faults.get("dense", ""))
    a = net.shared(x, faults.get("shared", ""))
    c = net.shared(a, faults.get("shared#2", ""))
    x = x + net.bilinear(a, c, faults.get("bilinear", ""))
    x = net.scanned(x, faults)
    x = net.chosen(x, faults)
    return jnp.square(net.head(x, faults.get("head", "")) - 1.0).mean()


def of_linen(faults: Faults) -> Made:
    """The network in Linen, with `nn.scan` and `nn.cond`."""
    from flax import linen

    class Layer(linen.Module):
        width: int

        @linen.compact
        def __call__(self, x: Any, kind: str) -> Any:
            return made(jnp.tanh(linen.Dense(self.width)(x)), kind)

    class Bilinear(linen.Module):
        @linen.compact
        def __call__(self, a: Any, c: Any, kind: str) -> Any:
            return made(linen.Dense(4, use_bias=False)(a) * c, kind)

    class Cell(linen.Module):
        @linen.compact
        def __call__(self, x: Any, number: Any) -> Any:
            return made_in(jnp.tanh(linen.Dense(4)(x)), faults, "cell", number)

    class Residual(linen.Module):
        def __call__(self, x: Any, y: Any, number: Any) -> Any:
            return made_in(x + y, faults, "residual", number)

    class Block(linen.Module):
        def setup(self) -> None:
            self.cell, self.residual = Cell(), Residual()

        def __call__(self, x: Any, number: Any) -> Any:
            return self.residual(x, self.cell(x, number), number), None

    class Branch(linen.Module):
        def __call__(self, x: Any) -> Any:
            return made(2.0 * jnp.sin(x), faults.get("branch", ""))

    class Net(linen.Module):
        def setup(self) -> None:
            self.dense, self.shared, self.head = Layer(4), Layer(4), Layer(2)
            self.bilinear, self.branch = Bilinear(), Branch()
            scanned = linen.scan(Block, variable_axes={"params": 0}, split_rngs={"params": True}, length=ITERATIONS)
            self.loop = scanned()

        def __call__(self, x: Any) -> Any:
            return run(self, x, faults)

        @linen.nowrap
        def scanned(self, x: Any, _: Faults) -> Any:
            return self.loop(x, jnp.arange(ITERATIONS))[0]

        @linen.nowrap
        def chosen(self, x: Any, _: Faults) -> Any:
            return linen.cond(x.sum() > -1e9, lambda net, x: net.branch(x), lambda _net, x: x, self, x)

    net = Net()
    return net.apply, net.init(jax.random.key(0), BATCH)


def of_nnx(faults: Faults) -> Made:
    """The network in NNX, with `nnx.scan` and `nnx.cond`."""
    from flax import nnx

    class Layer(nnx.Module):
        def __init__(self, width: int, out: int, rngs: nnx.Rngs) -> None:
            self.linear = nnx.Linear(width, out, rngs=rngs)

        def __call__(self, x: Any, kind: str) -> Any:
            return made(jnp.tanh(self.linear(x)), kind)

    class Bilinear(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.linear = nnx.Linear(4, 4, use_bias=False, rngs=rngs)

        def __call__(self, a: Any, c: Any, kind: str) -> Any:
            return made(self.linear(a) * c, kind)

    class Cell(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.linear = nnx.Linear(4, 4, rngs=rngs)

        def __call__(self, x: Any, number: Any) -> Any:
            return made_in(jnp.tanh(self.linear(x)), faults, "cell", number)

    class Residual(nnx.Module):
        def __call__(self, x: Any, y: Any, number: Any) -> Any:
            return made_in(x + y, faults, "residual", number)

    class Block(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.cell, self.residual = Cell(rngs), Residual()

        def __call__(self, x: Any, number: Any) -> Any:
            return self.residual(x, self.cell(x, number), number)

    class Branch(nnx.Module):
        def __call__(self, x: Any) -> Any:
            return made(2.0 * jnp.sin(x), faults.get("branch", ""))

    class Net(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.dense, self.shared, self.head = Layer(3, 4, rngs), Layer(4, 4, rngs), Layer(4, 2, rngs)
            self.bilinear, self.branch = Bilinear(rngs), Branch()
            self.loop = nnx.vmap(Block)(rngs.split(ITERATIONS))

        def scanned(self, x: Any, _: Faults) -> Any:
            iteration = nnx.scan(
                lambda x, block, number: block(x, number), in_axes=(nnx.Carry, 0, 0), out_axes=nnx.Carry
            )
            return iteration(x, self.loop, jnp.arange(ITERATIONS))

        def chosen(self, x: Any, _: Faults) -> Any:
            return nnx.cond(x.sum() > -1e9, lambda branch, x: branch(x), lambda _branch, x: x, self.branch, x)

    functions = FunctionsOfModules(lambda key: Net(nnx.Rngs(key)), lambda net, x: run(net, x, faults))
    return functions.loss, functions.init(0)


def of_equinox(faults: Faults) -> Made:
    """The network in Equinox, which has no loops and branches of its own, with `lax.scan` and `lax.cond`."""
    import equinox as eqx

    class Layer(eqx.Module):
        linear: eqx.nn.Linear

        def __call__(self, x: Any, kind: str) -> Any:
            return made(jnp.tanh(jax.vmap(self.linear)(x)), kind)

    class Bilinear(eqx.Module):
        linear: eqx.nn.Linear

        def __call__(self, a: Any, c: Any, kind: str) -> Any:
            return made(jax.vmap(self.linear)(a) * c, kind)

    class Cell(eqx.Module):
        linear: eqx.nn.Linear

        def __call__(self, x: Any, number: Any) -> Any:
            return made_in(jnp.tanh(jax.vmap(self.linear)(x)), faults, "cell", number)

    class Residual(eqx.Module):
        def __call__(self, x: Any, y: Any, number: Any) -> Any:
            return made_in(x + y, faults, "residual", number)

    class Block(eqx.Module):
        cell: Cell
        residual: Residual

        def __call__(self, x: Any, number: Any) -> Any:
            return self.residual(x, self.cell(x, number), number)

    class Branch(eqx.Module):
        def __call__(self, x: Any) -> Any:
            return made(2.0 * jnp.sin(x), faults.get("branch", ""))

    class Net(eqx.Module):
        dense: Layer
        shared: Layer
        bilinear: Bilinear
        loop: Block
        branch: Branch
        head: Layer

        def scanned(self, x: Any, _: Faults) -> Any:
            arrays, rest = eqx.partition(self.loop, eqx.is_array)

            def body(x: Any, iteration: Any) -> Any:
                block, number = iteration
                return eqx.combine(block, rest)(x, number), None

            return jax.lax.scan(body, x, (arrays, jnp.arange(ITERATIONS)))[0]

        def chosen(self, x: Any, _: Faults) -> Any:
            return jax.lax.cond(x.sum() > -1e9, self.branch, lambda x: x, x)

    def init(key: Any) -> Net:
        dense, shared, head, bilinear, loop = jax.random.split(key, 5)
        blocks = eqx.filter_vmap(lambda key: Block(Cell(eqx.nn.Linear(4, 4, key=key)), Residual()))
        return Net(
            dense=Layer(eqx.nn.Linear(3, 4, key=dense)),
            shared=Layer(eqx.nn.Linear(4, 4, key=shared)),
            bilinear=Bilinear(eqx.nn.Linear(4, 4, use_bias=False, key=bilinear)),
            loop=blocks(jax.random.split(loop, ITERATIONS)),
            branch=Branch(),
            head=Layer(eqx.nn.Linear(4, 2, key=head)),
        )

    functions = FunctionsOfModules(init, lambda net, x: run(net, x, faults))
    return functions.loss, functions.init(jax.random.key(0))


#: The package and the network of each framework.
FRAMEWORKS: Mapping[str, tuple[str, Callable[[Faults], Made]]] = {
    "linen": ("flax", of_linen),
    "nnx": ("flax", of_nnx),
    "equinox": ("equinox", of_equinox),
}
