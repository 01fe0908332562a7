"""`without_hidden_biases` drops pairs that differ by a bias of one program, which a norm behind it takes out again.

A convolution before a norm over the examples or positions of each channel needs no bias, and many programs have none
there. All else is the same, and the gradient of the bias is zero but for rounding.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gradscope.comparison.diagnosis.refuting.apart.biases_between import hidden_bias
from gradscope.comparison.diagnosis.refuting.applied_functions import without
from gradscope.comparison.judging.rows import ComparisonRow
from gradscope.comparison.pairing.matching import Dumps, Pairing
from gradscope.naming import ACTIVATION, PARAM, PARAM_GRAD, key_of, printable, split_key

#: Why a bias needs no counterpart.
HIDDEN: Final = "what reads its sum subtracts it with the mean: its gradient is zero but for rounding"


def without_hidden_biases(
    dumps: Dumps, pairing: Pairing, rows: Mapping[str, ComparisonRow]
) -> tuple[Pairing, dict[str, str]]:
    """Returns a pairing without pairs that differ by such a bias, and what their values and the biases are, in words.

    Args:
        dumps: The dumps.
        pairing: Their pairing.
        rows: The rows of the pairs, by the reference's keys.
    """
    sides = ((dumps.ref, pairing.only_ref), (dumps.cand, pairing.only_cand))
    alone = [
        key
        for source, keys in sides
        for key in keys
        if split_key(key)[0] == PARAM and len(source.entry(key).shape) == 1
    ]
    hidden: dict[str, str] = {}
    dropped: set[str] = set()
    for match in pairing.matched if alone else ():
        row = rows[match.ref]
        if match.matched_by == "map" or row.family != ACTIVATION or row.status != "different" or row.tolerance is None:
            continue
        bias = hidden_bias(dumps, match, alone, row.tolerance)
        if bias is not None:
            name = split_key(bias)[1]
            words = f"`{printable(name)}` is added in one program alone"
            dropped.add(match.ref)
            hidden |= dict.fromkeys((match.ref, *match.recipe.keys), words)
            hidden |= dict.fromkeys((bias, key_of(PARAM_GRAD, name)), HIDDEN)
    return without(dumps, pairing, dropped), hidden
