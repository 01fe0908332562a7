"""`is_moved` tells gradients that two programs hand to other ones of several equal elements.

Of two equal largest values in a window, a maximum may hand its gradient to the first, or half of it to each.
"""

from __future__ import annotations

import numpy as np

from gradscope.comparison.diagnosis.refuting.behind.errors_behind import EXACT
from gradscope.comparison.diagnosis.refuting.float_tensors import FloatTensors
from gradscope.comparison.judging.rows import ComparisonRow
from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.naming import ACTIVATION, key_of, split_key


def is_moved(dumps: Dumps, match: Match, row: ComparisonRow) -> bool:
    """Returns whether gradients differ only in how they are divided among elements that have the same value.

    Args:
        dumps: The dumps.
        match: The pair of the gradients of a value that agrees.
        row: Its row.
    """
    ref = FloatTensors(dumps.ref)
    value = ref.tensor(key_of(ACTIVATION, split_key(match.ref)[1]))
    one, other = ref.tensor(match.ref), FloatTensors(dumps.cand).made(match.recipe)
    if value is None or one is None or other is None or not value.shape == one.shape == other.shape:
        return False
    differences = np.bincount(np.unique(value, return_inverse=True)[1].reshape(-1), (other - one).reshape(-1))
    limit = row.tolerance if isinstance(row.tolerance, float) else EXACT
    return bool(np.linalg.norm(differences) <= limit * np.linalg.norm(one))
