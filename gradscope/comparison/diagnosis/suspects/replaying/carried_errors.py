"""`CarriedErrors` tells whether a norm only carries the error of what it reads on, however much that grows.

A batch norm over few values makes several times the relative error of what it reads, and so does its backward pass,
which subtracts means: in EfficientNet 8 times, at four values of each channel. Whether it makes an error of its own is
seen by computing it again: the formula that makes the reference's value of what the reference reads has to make the
candidate's value of what the candidate reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.diagnosis.refuting.float_tensors import FloatTensors
from gradscope.comparison.diagnosis.suspects.replaying.formulas import Formula, Reads, norm_of
from gradscope.comparison.diagnosis.suspects.replaying.normalisations import normalisations
from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.dump.manifest.layer_graph import inverted, sources_of
from gradscope.naming import ACTIVATION, ACTIVATION_GRAD, key_of, split_key

#: The largest share of the difference of both values that a formula may leave.
_LEFT: Final = 0.1

#: The largest number of elements of a value that is computed again.
_MOST_ELEMENTS: Final = 1 << 18

#: A tensor of the reference, and that of the candidate in its layout.
_Both: TypeAlias = tuple[Array, Array]


class CarriedErrors:
    """CarriedErrors computes the norms of two programs again.

    Args:
        dumps: The dumps.
    """

    def __init__(self, dumps: Dumps) -> None:
        self._ref, self._cand = FloatTensors(dumps.ref), FloatTensors(dumps.cand)
        self._sources = sources_of(dumps.ref.manifest.layers)
        self._readers = inverted(self._sources)

    def carries(self, key: str, matches: Mapping[str, Match]) -> bool:
        """Returns whether a step is a norm that makes no error of its own.

        Args:
            key: The key of the reference's owner, of a value or the gradient of one.
            matches: The pairs of tensors, by the keys of the reference's owners.

        Raises:
            DumpError: One of the dumps is damaged.
        """
        with np.errstate(all="ignore"):  # formulas are tried on values that they are not made for
            return self._carries(key, matches)

    def _carries(self, key: str, matches: Mapping[str, Match]) -> bool:
        family, name = split_key(key)
        if family == ACTIVATION:
            return self._carries_value(key, matches)
        readers = self._readers.get(key_of(ACTIVATION, name), ()) if family == ACTIVATION_GRAD else ()
        values = dict.fromkeys(each for each in readers if split_key(each)[0] == ACTIVATION)
        return len(values) == 1 and self._carries_gradient(key, *values, matches=matches)

    def _carries_value(self, key: str, matches: Mapping[str, Match]) -> bool:
        step = self._step(key, matches)
        if step is None:
            return False
        formula, ref, cand = step
        return self._leaves_nothing(key, matches, formula.apply(ref), formula.apply(cand))

    def _carries_gradient(self, key: str, value: str, *, matches: Mapping[str, Match]) -> bool:
        """Returns whether the backward pass of the one step that reads a value makes no error of its own."""
        step, gradients = self._step(value, matches), self._both(key_of(ACTIVATION_GRAD, split_key(value)[1]), matches)
        if step is None or gradients is None or step[0].pull_back is None:
            return False
        made = (step[0].pull_back(reads, gradient) for reads, gradient in zip(step[1:], gradients, strict=True))
        return self._leaves_nothing(key, matches, *made)

    def _step(self, key: str, matches: Mapping[str, Match]) -> tuple[Formula, Reads, Reads] | None:
        """Returns the formula of a value, and what its step reads in both programs; None where any is not known."""
        value = self._ref.tensor(key)
        reads = self._reads(key, matches)
        if value is None or not reads:
            return None
        ref, cand = zip(*reads, strict=True)
        if value.size > _MOST_ELEMENTS:
            return None
        formula = next(normalisations(ref, value), None)
        return None if formula is None else (formula, ref, cand)

    def _reads(self, key: str, matches: Mapping[str, Match]) -> Sequence[_Both]:
        """Returns what the step of a value reads in both programs; nothing where one of them lacks any of it."""
        known = [each for each in dict.fromkeys(self._sources.get(key, ())) if self._ref.tensor(each) is not None]
        found = [self._both(each, matches) for each in known]
        both = [each for each in found if each is not None]
        return both if len(both) == len(found) else ()

    def _leaves_nothing(self, key: str, matches: Mapping[str, Match], ref_made: Array, cand_made: Array) -> bool:
        both = self._both(key, matches)
        if both is None:
            return False
        most = _LEFT * norm_of(both[1] - both[0])
        return all(
            made.shape == own.shape and norm_of(made - own) <= most
            for made, own in zip((ref_made, cand_made), both, strict=True)
        )

    def _both(self, key: str, matches: Mapping[str, Match]) -> _Both | None:
        """Returns a tensor in both programs, in the reference's layout; None where one of them lacks it."""
        match, ref = matches.get(key), self._ref.tensor(key)
        cand = None if match is None else self._cand.made(match.recipe)
        return None if ref is None or cand is None or cand.shape != ref.shape else (ref, cand)
