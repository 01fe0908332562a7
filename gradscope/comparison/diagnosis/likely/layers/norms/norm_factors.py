"""`NormFactors` are by what a norm multiplies each group of values, and what that is made of."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.naming.wording import brief

#: The relative error up to which factors are those of the variances.
NEARLY: Final = 1e-4

#: How many times worse every other explanation has to be.
_CLEARLY: Final = 3

#: What norms add to a variance most often.
_USUAL: Final = tuple(10.0**exponent for exponent in range(-12, 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class NormFactors:
    """NormFactors has by what a norm multiplies each group of values, with what that is made of.

    Attributes:
        factor: By what it multiplies them, for each group, without the scale.
        variance: Their mean square.
        size: The l2 norm of what is multiplied, for each group.
        count: The number of values in a group.
    """

    factor: Array
    variance: Array
    size: Array
    count: int

    def epsilon(self, less: int) -> float:
        """Returns what is added to the variances.

        Args:
            less: By how much less than the number of values the variances are divided.
        """
        weights = np.square(self.size) * self.factor**6  # an error of the sum makes one of the value by this, squared
        apart = 1 / np.square(self.factor) - self._variances(less)
        return max(0.0, float((weights * apart).sum() / weights.sum()))

    def added(self, less: int) -> str:
        """Returns what is added to the variances in words: a usual number, where that is as near.

        Args:
            less: As above.
        """
        epsilon = self.epsilon(less)
        most = _CLEARLY * self.error(self.made(less, epsilon))
        if self.error(self.made(less, 0.0)) <= most:
            return "next to nothing"
        near = (each for each in _USUAL if self.error(self.made(less, each)) <= most)
        return brief(min(near, key=lambda each: abs(math.log(each / epsilon)), default=epsilon))

    def made(self, less: int, epsilon: float) -> Array:
        """Returns the factors of a norm.

        Args:
            less: As above.
            epsilon: What is added to the variances.
        """
        return 1 / np.sqrt(self._variances(less) + epsilon)

    def are_of_variances(self) -> bool:
        """Returns whether the factors are those of the variances and one number."""
        most = NEARLY * float(np.linalg.norm(self.size * self.factor))
        return any(self.error(self.made(less, self.epsilon(less))) <= most for less in (0, 1))

    def error(self, factor: Array) -> float:
        """Returns how far a value is away with other factors.

        Args:
            factor: The factors.
        """
        return float(np.linalg.norm(self.size * (factor - self.factor)))

    def _variances(self, less: int) -> Array:
        return self.variance * (self.count / (self.count - less))
