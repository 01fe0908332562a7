"""Sums of what is read, and of products of that, are found also where a program moves the channels of one term."""

from __future__ import annotations

import numpy as np
import pytest

from gradscope.comparison.diagnosis.suspects.replaying.sums_of_terms import sums_of_terms

DRAW = np.random.default_rng(4).normal


@pytest.mark.parametrize("shape", [(2, 5, 3, 4), (2, 4, 4, 4), (3, 6, 7)])
def test_a_scaled_branch_with_its_channels_elsewhere_is_a_term(shape: tuple[int, ...]) -> None:
    stream, channels = DRAW(size=shape), shape[1]
    branch, scale = DRAW(size=(shape[0], *shape[2:], channels)), DRAW(size=channels)
    reads = [stream, branch, scale]
    formula = next(sums_of_terms(reads, stream + np.moveaxis(branch * scale, -1, 1)))
    assert {*formula.uses} == {0, 1, 2}
    again = formula.apply([stream, 2 * branch, scale])
    np.testing.assert_allclose(again, stream + np.moveaxis(2 * branch * scale, -1, 1))
    back = next(sums_of_terms([branch, stream], branch + np.moveaxis(stream, 1, -1)))
    assert {*back.uses} == {0, 1}
    assert not list(sums_of_terms(reads, DRAW(size=shape)))
