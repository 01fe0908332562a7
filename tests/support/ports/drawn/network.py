"""`drawn_port` draws a network and its port: their steps, what these are called, and which faults the port can have."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from tests.support.ports import flax_like, torch_like
from tests.support.ports.drawn import images, sequences
from tests.support.ports.drawn.steps import Draw, Step, dense_weights
from tests.support.ports.port import Port, Program

Array = Any

#: How many classes there are, and examples.
CLASSES, EXAMPLES = 5, 6

#: How many kinds of tokens there are.
TOKENS = 11

#: What a program computes in.
Precision = Literal["float32", "bfloat16"]


def drawn_port(seed: int, *, precision: Precision = "float32", is_scoped: bool = True) -> Port:
    """A network and its port.

    Args:
        seed: What they are drawn from.
        precision: What the port computes in, up to the logits.
        is_scoped: Whether the reference has scopes.
    """
    draw = Draw(seed)
    of_images = draw.one_of(True, False)
    shape: tuple[int, ...] = (draw.one_of(4, 8), 8, 8) if of_images else (draw.one_of(6, 8), 8)
    begins, steps = shape, list[Step]()
    for _ in range(draw.one_of(2, 3, 4, 5)):
        step = draw.one_of(*(images.STEPS if of_images else sequences.STEPS))
        if of_images and step is images.pool and shape[1] < 4:
            continue
        steps.append(step(draw, shape))
        shape = steps[-1].shape
    is_flat = of_images and draw.one_of(True, False)
    head = draw.linear(int(np.prod(shape)) if is_flat else shape[0 if of_images else 1], CLASSES)
    data = draw.normal(EXAMPLES, *begins) if of_images else draw.integers(TOKENS, EXAMPLES, begins[0])
    labels = draw.integers(CLASSES, EXAMPLES)
    table = None if of_images else draw.normal(TOKENS, begins[1])

    names = [f"{each.kind}{at}" for at, each in enumerate(steps)]
    ported_names = [f"{each.port_kind}_{at}" for at, each in enumerate(steps)]
    weights = {name: each.weights for name, each in zip(names, steps, strict=True) if each.weights is not None}
    ported = {
        name: each.ported(each.weights)
        for name, each in zip(ported_names, steps, strict=True)
        if each.weights is not None
    }
    ported_head = {**dense_weights(head)}
    if is_flat:  # the port flattens height, width and channels
        ported_head["kernel"] = head["weight"].reshape(CLASSES, *shape).transpose(2, 3, 1, 0).reshape(-1, CLASSES)
    variables = {**weights, "fc": head} | ({} if table is None else {"wte": table})
    port_variables = {**ported, "head": ported_head} | ({} if table is None else {"Embed": {"embedding": table}})

    def reference(weights: Any, batch: Any) -> Array:
        scope: Callable[[str], AbstractContextManager[Any]] = jax.named_scope if is_scoped else lambda _: nullcontext()
        with scope("wte"):
            x = batch["x"] if table is None else weights["wte"][batch["x"]]
        for name, step in zip(names, steps, strict=True):
            with scope(name):
                x = step.reference(weights.get(name), x)
        with scope("fc"):
            x = x.reshape(len(x), -1) if is_flat else x.mean((2, 3) if of_images else 1)
            logits = torch_like.linear(weights["fc"], x)
        return torch_like.cross_entropy(logits, batch["y"])

    def candidate(fault: str) -> Program:
        at, _, wrong = fault.partition(": ")

        def loss(weights: Any, batch: Any) -> Array:
            weights, x = jax.tree.map(lambda each: each.astype(precision), weights), batch["x"]
            with jax.named_scope("Embed"):
                x = x.astype(precision) if table is None else weights["Embed"]["embedding"][x]
            for name, step in zip(ported_names, steps, strict=True):
                with jax.named_scope(name):
                    x = step.candidate(weights.get(name), x, wrong if name == at else "")
            with jax.named_scope("head"):
                x = x.reshape(len(x), -1) if is_flat else x.mean((1, 2) if of_images else 1)
                logits = flax_like.dense(weights["head"], x).astype(jnp.float32)
            return torch_like.cross_entropy(logits, batch["y"])

        images_last = data.transpose(0, 2, 3, 1) if of_images else data
        return loss, _arrays(port_variables), {"x": images_last, "y": labels}

    return Port(
        name=f"drawn {seed}",
        reference=(reference, _arrays(variables), {"x": data, "y": labels}),
        candidate=candidate,
        shows_at={
            f"{ported_names[at]}: {fault}": (
                *_parts(names[at], step.weights),
                *_parts(ported_names[at], ported.get(ported_names[at])),
                # A gradient first differs where it arrives, and a sum that is left out where it is read.
                *((["wte", *names][at],) if fault == "no gradient" else ()),
                *(([*names, "fc"][at + 1],) if fault == "no skip" else ()),
            )
            for at, step in enumerate(steps)
            for fault in step.faults
            # Of two norms by the mean square in a row, the second undoes what the first one adds.
            if not (fault == "epsilon" and [each.kind for each in steps[at : at + 2]] == ["rms", "rms"])
        },
    )


def _parts(name: str, weights: Any) -> list[str]:
    """The name of a step, and those of its parts that have weights."""
    parts = [part for part, each in (weights or {}).items() if isinstance(each, dict)]
    return [name, *(f"{name}/{part}" for part in parts)]


def _arrays(tree: Any) -> Any:
    return jax.tree.map(jnp.asarray, tree)
