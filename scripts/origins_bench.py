"""Measures the search for the origin of a NaN in ResNet-50, against the plain step and its compilation.

The search may take as long as ten plain steps and one compilation of the plain step. Forward, one block takes the
logarithm of a negative number; backward, the square root of zero, whose derivative is infinite.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp

import gradscope as gs

_ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(_ROOT / "models"))
import resnet50  # noqa: E402 - a model file, which is no package

BATCH = 2
STEPS = 10
REPEATS = 3
BLOCK = "stage3_block2"

#: By direction, what the block adds to its result, and the primitive in which the NaN begins.
FAULTS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "forward": (lambda x: 0 * jnp.log(-1 - jnp.square(x)), "log"),
    "backward": (lambda x: jnp.sqrt(0 * x), "sqrt"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Seconds of one search, and of what it is held to.

    Attributes:
        direction: Where the NaN is: `forward` or `backward`.
        search: Seconds of the search.
        step: Seconds of the plain step, compiled.
        compilation: Seconds of compiling the plain step.
        found: Whether the origin is the operation that was planted.
    """

    direction: str
    search: float
    step: float
    compilation: float
    found: bool

    @property
    def limit(self) -> float:
        """Seconds that the search may take."""
        return STEPS * self.step + self.compilation


def measurements(*, quick: bool) -> Iterator[Measurement]:
    """Yields the measurement of each direction.

    Args:
        quick: Whether ResNet-18 on images of 64 pixels stands for ResNet-50 on 224.
    """
    net = resnet50.ResNet(depth=18, image_size=64) if quick else resnet50.ResNet()
    init_key, batch_key = jax.random.split(jax.random.key(0))
    variables, batch = jax.jit(net.init)(init_key), net.batch(batch_key, BATCH)
    for direction, (fault, primitive) in FAULTS.items():
        plain = resnet50.residual

        def faulty(block: Any, *arguments: Any, fault: Any = fault, plain: Any = plain) -> Any:
            x, updated = plain(block, *arguments)
            return (x + fault(x) if block.name == BLOCK else x), updated

        with mock.patch.object(resnet50, "residual", faulty):
            step, compilation = _plain(net, variables, batch)
            jax.clear_caches()  # the search compiles its own programs, as the first one in a process does
            dump = gs.capture(net.loss, variables, batch, has_aux=True)
        (origin,) = dump.origins
        yield Measurement(
            direction=direction,
            search=dump.manifest.timings["search for the origin"],
            step=step,
            compilation=compilation,
            found=(origin.direction, origin.primitive) == (direction, primitive) and BLOCK in origin.name,
        )


def _plain(net: resnet50.ResNet, variables: Any, batch: Any) -> tuple[float, float]:
    """Returns the seconds of a plain step and of its compilation."""

    def loss(params: Any, state: Any, batch: Any) -> Any:
        return net.loss({**state, "params": params}, batch)

    arguments = variables["params"], variables, batch
    begin = time.perf_counter()
    compiled = jax.jit(jax.value_and_grad(loss, has_aux=True)).lower(*arguments).compile()
    compilation = time.perf_counter() - begin
    jax.block_until_ready(compiled(*arguments))
    seconds: list[float] = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        jax.block_until_ready(compiled(*arguments))
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds), compilation
