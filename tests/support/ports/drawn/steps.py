"""`Step`: one step of a drawn network, as both programs of a port write it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = Any
Weights = Any

#: Computes a step of the reference from its weights and what it reads.
Reference = Callable[[Weights, Array], Array]

#: Computes a step of the port from its weights, what it reads, and a fault; "" is none.
Candidate = Callable[[Weights, Array, str], Array]


@dataclass(frozen=True, kw_only=True)
class Step:
    """A step of a drawn network.

    Attributes:
        kind: What it computes, as it is called in the reference.
        port_kind: How the port calls it.
        weights: The weights of the reference, `[out, in, ...]`; None of a step that has none.
        ported: Makes the port's weights of those.
        reference: Computes it, images `[N, C, H, W]` and sequences `[N, T, D]`.
        candidate: Computes it as the port does, images `[N, H, W, C]`, with a fault.
        faults: The faults that it can have.
        shape: The shape of one example behind it: `(C, H, W)` or `(T, D)`.
    """

    kind: str
    port_kind: str
    weights: Weights = None
    ported: Callable[[Weights], Weights] = lambda weights: weights
    reference: Reference
    candidate: Candidate
    faults: Sequence[str] = ()
    shape: tuple[int, ...]


class Draw:
    """Draw draws sizes and weights.

    Args:
        seed: What is drawn from.
    """

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)

    def one_of(self, *choices: Any) -> Any:
        """One of some choices."""
        return choices[self._random.integers(len(choices))]

    def normal(self, *shape: int, scale: float = 1.0, mean: float = 0.0) -> np.ndarray[Any, Any]:
        """An array of normal numbers."""
        return (mean + scale * self._random.standard_normal(shape)).astype(np.float32)

    def integers(self, most: int, *shape: int) -> np.ndarray[Any, Any]:
        """An array of integers from 0 on, below a number."""
        return self._random.integers(most, size=shape).astype(np.int32)

    def linear(self, inputs: int, outputs: int) -> Mapping[str, Array]:
        """The weights of a dense layer `[out, in]`, and its bias."""
        return {
            "weight": self.normal(outputs, inputs, scale=inputs**-0.5),
            "bias": self.normal(outputs, scale=0.2),
        }

    def conv(self, inputs: int, outputs: int, *, groups: int = 1, size: int = 3) -> Mapping[str, Array]:
        """The weights of a convolution `[out, in, height, width]`, and its bias."""
        each = inputs // groups
        return {
            "weight": self.normal(outputs, each, size, size, scale=(each * size * size) ** -0.5),
            "bias": self.normal(outputs, scale=0.2),
        }

    def norm(self, width: int) -> Mapping[str, Array]:
        """The scale and shift of a normalization."""
        return {"weight": self.normal(width, scale=0.2, mean=1.0), "bias": self.normal(width, scale=0.2)}


def dense_weights(weights: Mapping[str, Array]) -> Mapping[str, Array]:
    """The weights of a dense layer as JAX libraries have them."""
    return {"kernel": weights["weight"].T, "bias": weights["bias"]}


def conv_weights(weights: Mapping[str, Array]) -> Mapping[str, Array]:
    """The weights of a convolution as JAX libraries have them."""
    return {"kernel": weights["weight"].transpose(2, 3, 1, 0), "bias": weights["bias"]}


def norm_weights(weights: Mapping[str, Array]) -> Mapping[str, Array]:
    """The weights of a normalization as JAX libraries have them."""
    return {"scale": weights["weight"], "bias": weights["bias"]}
