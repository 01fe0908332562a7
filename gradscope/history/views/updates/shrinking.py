"""States that the weights of a run shrink away, as by a weight decay that outweighs their gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from gradscope import naming
from gradscope.history.history_reader import History
from gradscope.history.views.family_series import series_of

#: The fewest recorded steps that say so.
_FEWEST: Final = 3
#: A parameter shrinks away whose norm ends below this share of the one it began with.
_SHRUNKEN: Final = 0.1
#: As many of them do so.
_PART: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Shrinking:
    """`Shrinking` is that of the parameters of a run, of those that did not begin at zero.

    Attributes:
        parameters: How many have shrunk away.
        of: Of how many.
        left: The share of their norms that is left of these, in the median.
    """

    parameters: int
    of: int
    left: float


def shrinking(history: History) -> Shrinking | None:
    """Returns how the parameters of a run shrink away; None where less than half of them do, or one grows.

    Args:
        history: The run's history.

    Raises:
        DumpError: The history is damaged.
    """
    norms = series_of(history, history.columns(("l2",)), naming.PARAM, "l2").values()
    shares = np.array([each[-1] / each[0] for each in norms if len(each) >= _FEWEST and each[0] > 0])
    if not len(shares) or not np.isfinite(shares).all() or shares.max() > 1:
        return None
    shrunken = shares[shares < _SHRUNKEN]
    if len(shrunken) < _PART * len(shares):
        return None
    return Shrinking(parameters=len(shrunken), of=len(shares), left=float(np.median(shrunken)))
