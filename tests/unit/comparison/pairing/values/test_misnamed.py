"""The first output of a layer (`lstm.0`) is not paired with the first of several layers (`lstm_0`) against values."""

from __future__ import annotations

import numpy as np

from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.comparison.pairing.values.misnamed import without_misnamed
from tests.support.dumps import dump_of

_draw = np.random.default_rng(31).normal
INNER, OUTER, OTHER = (_draw(size=(4, 3)).astype(np.float32) for _ in range(3))


def _kept(*values: tuple[np.ndarray, np.ndarray]) -> list[str]:
    names = [("lstm.0", "lstm_0"), ("lstm.1", "lstm_1")]
    families = ("activation", "activation_grad")
    ref, cand = (
        dump_of({
            f"{family}/{pair[side]}": each[side]
            for pair, each in zip(names, values, strict=True)
            for family in families
        })
        for side in (0, 1)
    )  # fmt: skip
    matches = [Match.of(f"{family}/{one}", f"{family}/{other}", "path") for one, other in names for family in families]
    return [match.ref for match in without_misnamed(Dumps(ref=ref, cand=cand), matches)]


def test_a_name_counts_for_nothing_where_the_value_is_under_the_name_of_another_pair_that_differs() -> None:
    assert _kept((OUTER, INNER), (OTHER, OUTER)) == []
    assert _kept((OTHER, OUTER), (OUTER.T.copy(), INNER)) == []  # in any layout


def test_a_name_counts_where_its_value_is_nowhere_else_or_under_a_name_that_agrees() -> None:
    every = ["activation/lstm.0", "activation_grad/lstm.0", "activation/lstm.1", "activation_grad/lstm.1"]
    assert _kept((INNER, OTHER), (OUTER, INNER + 1)) == every
    # The second of the candidate returns what the first does: it is the second that is wrong.
    assert _kept((INNER, INNER), (OUTER, INNER)) == every
