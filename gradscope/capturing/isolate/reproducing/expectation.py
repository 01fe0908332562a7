"""An expectation is one array that the script of a layer must compute, and where that comes from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np

from gradscope.arrays.blocks import Array

#: Where an expected array comes from: the dump, the dump's sum less the terms of other layers, or a run of the layer
#: when the script was written.
Origin: TypeAlias = Literal["dump", "rest", "run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """An `Expectation` is one array that the script must compute.

    Attributes:
        name: The output's name, or the name of the input whose gradient it is.
        array: The array.
        returned: What the layer computed in its place when the script was written.
        origin: Where it comes from.
        tolerance: The largest `rel_l2` that is accepted.
        floor: The largest l2 norm of the difference that is accepted whatever the tolerance, as it is rounding; 0
            where the array is no sum whose terms cancel.
    """

    name: str
    array: Array
    returned: Array
    origin: Origin
    tolerance: float
    floor: float = 0.0

    @property
    def differs(self) -> bool:
        """Whether the script shows an error of the layer here."""
        if self.origin == "run":
            return False
        one, other = (each.astype(np.complex128).ravel() for each in (self.array, self.returned))
        finite = np.isfinite(one)
        if one.shape != other.shape or not np.array_equal(finite, np.isfinite(other)):
            return True
        away = np.linalg.norm((other - one)[finite])
        return bool(away > max(self.tolerance * np.linalg.norm(one[finite]), self.floor))

    def of_rest(self, of_dump: Array | None, summed: Array | None) -> Expectation:
        """Returns the expectation of the term that is right if those of the other layers are.

        Args:
            of_dump: The dump's sum; None where it has none.
            summed: The sum of what the layers return.
        """
        own = self.returned
        if of_dump is None or summed is None or not own.shape == of_dump.shape == summed.shape:
            return self
        array = (own + (of_dump - summed)).astype(own.dtype)
        # The sum is right to its own rounding, of which a small term has more.
        share = float(np.linalg.norm(of_dump.ravel()) / (np.linalg.norm(array.ravel()) or 1.0))
        return replace(self, array=array, origin="rest", tolerance=self.tolerance * max(1.0, share))
