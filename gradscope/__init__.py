"""Gradient inspection for JAX: what every layer computes and what flows back through it.

    import gradscope as gs

    step = jax.jit(gs.value_and_grad(loss))        # jax.value_and_grad that also observes
    (value, grads), seen = step(params, batch)
    gs.save("run.npz", seen)

    gs.compare(gs.load("a.npz"), gs.load("b.npz")).sentence

Names are imported on first use: reading and comparing dumps never imports JAX.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradscope.api.observing import capture, gradients, save, value_and_grad
    from gradscope.api.reading import Dump, compare, load
    from gradscope.stats import TensorStats, tensor_stats

_HOMES = {
    "Dump": "gradscope.api.reading",
    "TensorStats": "gradscope.stats",
    "capture": "gradscope.api.observing",
    "compare": "gradscope.api.reading",
    "gradients": "gradscope.api.observing",
    "load": "gradscope.api.reading",
    "save": "gradscope.api.observing",
    "tensor_stats": "gradscope.stats",
    "value_and_grad": "gradscope.api.observing",
}

__all__ = ["Dump", "TensorStats", "capture", "compare", "gradients", "load", "save", "tensor_stats", "value_and_grad"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'gradscope' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
