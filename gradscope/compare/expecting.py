"""What is expected of a pair of tensors before anybody looks at them: a default tolerance, and a floor of noise."""

from __future__ import annotations

from gradscope.compare.noise import noise_floor
from gradscope.compare.pairing import Dumps
from gradscope.compare.tolerance import default_tolerance, reduced_matmul
from gradscope.dump.manifest import Entry


class Expectations:
    """What two dumps, by how they were computed, have their tensors judged by.

    Args:
        dumps: The dumps.
    """

    def __init__(self, dumps: Dumps) -> None:
        ref, cand = (reduced_matmul(side.manifest.provenance) for side in (dumps.ref, dumps.cand))
        self._reduced = ref or cand
        self._lowered = cand and not ref

    def tolerance(self, ref: Entry, cand: Entry) -> float:
        """The default tolerance on `rel_l2` of two entries."""
        return default_tolerance(ref.family, ref.dtype, cand.dtype, reduced=self._reduced)

    def noise_floor(self, ref: Entry, cand: Entry) -> float | None:
        """The noise floor of two entries, those of owners; None where the reference has none."""
        return noise_floor(ref, cand, reduced=self._lowered)
