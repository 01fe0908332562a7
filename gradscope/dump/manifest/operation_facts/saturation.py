"""Defines how far a bounded function is at its limits, whose result is no tensor of the dump or that receives noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

from gradscope.naming import IterationIndex

#: The bounded functions, at whose limits no gradient passes.
BoundedName: TypeAlias = Literal["softmax", "sigmoid", "tanh", "erf"]
BOUNDED_NAMES: Final[tuple[BoundedName, ...]] = get_args(BoundedName)


@dataclass(frozen=True, slots=True, kw_only=True)
class Saturation:
    """A `Saturation` states how far a function that is no layer's output, or has noise or a softmax, is at its limits.

    Attributes:
        function: `softmax`, `sigmoid`, `tanh` or `erf`.
        index: Execution index of its result.
        saturated: The share of elements within 0.01 of a limit; of a softmax over K, (K^2 mean(p^2) - 1) / (K - 1): 0
            for equal weights, 1 for a single one.
        layer: Path of the innermost layer that it is in; None outside all layers.
        inputs: Names of the nearest activations that it is computed from, in execution order.
        source: `file:line` in the user's code; None where unknown.
        iteration: Index per enclosing loop, outermost first.
        names: Names of the activation that its result is; empty where it is no layer's output.
        noise: The share of the variance of what it receives that is noise: of a term in which no parameter is.
        again: Whether it is a softmax, or a sigmoid, whose result is the logits of another one.
    """

    function: BoundedName
    index: int
    saturated: float
    layer: str | None = None
    inputs: tuple[str, ...] = ()
    source: str | None = None
    iteration: IterationIndex = ()
    names: tuple[str, ...] = ()
    noise: float = 0.0
    again: bool = False
