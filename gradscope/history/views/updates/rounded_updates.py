"""Finds the parameters of a short dtype whose updates are lost when they are added, for they are rounded away.

Between two powers of two, the values of bfloat16 are 2^-7 of the lower one apart, those of float16 2^-10. Adding less
than half of that to a value leaves it as it is. So an element of at least some size stays where the largest element of
the update is less than half the distance of values there, which is at least 2^-9, or 2^-12, of that size.

Added otherwise, as with stochastic rounding, an update is not lost: the largest element of the parameter moves then.
Nor is it known to be lost where it has a longer dtype: it may be added to a longer copy of the parameter, of which the
loss gets a short one at each step. What is carried to later steps, as by a compensated sum, moves the largest element
once it has added up: where all updates together are too small for that, nothing is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from gradscope import naming
from gradscope.history.history_reader import History

#: Half the least distance of a value to the next, over the value.
_HALF_DISTANCES: Final[Mapping[str, float]] = {"bfloat16": 2.0**-9, "float16": 2.0**-12}
#: The size from which on all elements stay, over the rms of the parameter: of a normal distribution, 62% are larger.
_SIZE: Final = 0.5
#: How many times half the least distance of values, of the largest element, all updates add up to: two distances.
_ADDED_UP: Final = 4
#: Recorded steps that say so, at all of which it has to be so: the rate of a warm-up and that behind a decay are small.
_FEWEST: Final = 10


def rounded_parameters(history: History) -> tuple[str, ...]:
    """Returns the names of the parameters of which no recorded update moves an element of at least half the rms.

    Args:
        history: The run's history.

    Raises:
        DumpError: The history is damaged.
    """
    dtypes = {each.key: each.dtype for each in history.tensors.values()}
    short = {each.name: _HALF_DISTANCES[each.dtype] for each in history.tensors.values()
             if each.family == naming.PARAM and each.dtype in _HALF_DISTANCES
             and dtypes.get(naming.key_of(naming.UPDATE, each.name)) == each.dtype}  # fmt: skip
    if not short:
        return ()
    columns = history.columns(("rms", "amax"))
    series = {tensor.key: columns[number] for number, tensor in history.tensors.items() if number in columns}
    return tuple(
        name
        for name, half in short.items()
        if (param := series.get(naming.key_of(naming.PARAM, name))) is not None
        and (update := series.get(naming.key_of(naming.UPDATE, name))) is not None
        and _is_lost(param, update, half)
    )


def _is_lost(param: Mapping[str, np.ndarray], update: Mapping[str, np.ndarray], half: float) -> bool:
    _, at, of = np.intersect1d(param["step"], update["step"], return_indices=True)
    rms, largest, added = param["rms"][at], param["amax"][at], update["amax"][of]
    moves = added > 0
    lost = added < half * _SIZE * rms
    if int(moves.sum()) < _FEWEST or not lost.all() or not (largest == largest[0]).all():
        return False
    steps = param["step"][at]
    return bool(added.mean() * (steps[-1] - steps[0] + 1) >= _ADDED_UP * half * largest[0])
