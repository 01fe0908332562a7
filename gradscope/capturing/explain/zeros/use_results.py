"""Use results state what the search for the reason of a zero gradient found at a use of a value."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np

from gradscope.naming import IterationIndex
from gradscope.tracing.dataflow.forward import FrameVariable


class VariableAt(NamedTuple):
    """A `VariableAt` is a value, or a part of it, in one iteration of the loops around its frame.

    Attributes:
        variable: The value.
        iteration: The iteration.
        elements: For each of its elements whether it is in the part, as bytes; empty for all of it.
    """

    variable: FrameVariable
    iteration: IterationIndex
    elements: bytes = b""

    @property
    def part(self) -> np.ndarray | None:
        """The elements that are examined, as booleans; None for all."""
        shape = self.variable.atom.aval.shape
        return np.frombuffer(self.elements, bool).reshape(shape) if self.elements else None

    def arriving(self, gradient: np.ndarray | None) -> bool:
        """Returns whether a gradient with respect to the value is not zero in the part."""
        return gradient is not None and bool(np.any(gradient if self.part is None else gradient[self.part]))


class ZeroDerivative(NamedTuple):
    """A `ZeroDerivative` is a use from which nothing comes back, although something arrives there."""

    reason: str


class NonzeroTerm(NamedTuple):
    """A `NonzeroTerm` is a use from which something comes back."""

    use: str


#: The result for one use of a value; a `VariableAt` where the arriving gradient is zero already.
UseResult: TypeAlias = ZeroDerivative | NonzeroTerm | VariableAt
