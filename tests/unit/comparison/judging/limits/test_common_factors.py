"""A gradient that is a multiple of the reference's is told from one with errors that have nothing to do with it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradscope as gs
from gradscope.comparison.judging.compare_options import CompareOptions
from gradscope.comparison.judging.limits.common_factors import CommonFactors
from gradscope.comparison.judging.limits.measured_pairs import measured_pairs
from gradscope.comparison.pairing.matching import Dumps, Match

_draw = np.random.default_rng(61).normal


def _is_of_all(factor: float, noise: float, size: int) -> bool:
    slope = _draw(size=size)

    def captured(values: Any) -> gs.Dump:
        return gs.capture(lambda weights, x: (weights * x).sum(), np.ones(size, np.float32), np.float32(values))

    ref, cand = captured(slope), captured(factor * slope + noise * _draw(size=size))
    dumps = Dumps(ref=ref.source, cand=cand.source)
    key = next(each for each in ref if each.startswith("param_grad/"))
    pairs = measured_pairs(dumps, [Match.of(key, key, "name")], CompareOptions())
    error = float(np.linalg.norm(np.asarray(cand[key]) - np.asarray(ref[key])) / np.linalg.norm(np.asarray(ref[key])))
    return CommonFactors(dumps.ref, pairs, {key: error}).is_of_all(key)


@pytest.mark.parametrize(
    ("factor", "noise", "size", "expected"),
    [(1.002, 1e-5, 256, True), (0.99, 1e-4, 256, True), (1.002, 1e-3, 256, False), (1.0, 1e-3, 256, False),
     (1.002, 1e-5, 16, False)],
)  # fmt: skip
def test_a_factor_of_all_elements_is_told_from_noise(factor: float, noise: float, size: int, expected: bool) -> None:
    assert _is_of_all(factor, noise, size) is expected
