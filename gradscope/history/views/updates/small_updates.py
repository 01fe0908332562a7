"""States that all updates of a run together hardly move its parameters, and what makes them so small."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from gradscope import naming
from gradscope.history.database.schema import RUN_OPTION
from gradscope.history.history_reader import History
from gradscope.history.views.family_series import series_of

#: All steps together move the parameters by less than this share.
_HARDLY: Final = 0.1
#: The epsilon that Adam and its kin add to the root of the second moment by default.
EPSILON: Final = 1e-8
#: The decay of the second moment by default. The moment begins at zero, so that it is small at first, whatever the
#: gradients are, which a division by one minus a power of the decay makes up for.
_DECAY: Final = 0.999
#: Recorded steps that show that all updates have one norm, which differs by less than `_SAME` of it, while that of the
#: gradients differs by more than `_OTHER`.
_FEWEST: Final = 5
_SAME: Final = 1e-3
_OTHER: Final = 0.05
#: A clip that leaves less than this share of the gradients is active at most steps.
_CLIPPED: Final = 0.5
#: An update of at most so many times the rate times the gradient is proportional to it, as with a momentum of 0.99; one
#: that an optimizer normalises, as by their signs, is as large whatever a clip leaves.
_OF_MOMENTUM: Final = 100.0
#: The family of Adam's second moment.
_MOMENT: Final = "slot/nu"
#: The facts that state the optimizer of `train`, by what it clips the gradients, and what it multiplies them by before.
_OPTIMIZER: Final = f"{RUN_OPTION}--optimizer"
_CLIP: Final = f"{RUN_OPTION}--clip"
_MULTIPLIED: Final = f"{RUN_OPTION}--multiply"


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallUpdates:
    """`SmallUpdates` are updates that hardly move the parameters of a run.

    Attributes:
        moved: By how much all steps together move the parameters that a gradient reaches, over their norm, as by the
            largest recorded update.
        second_moment: The root of the second moment that Adam keeps, where it is below `EPSILON`, also when its
            start at zero is made up for; else None.
        one_norm: Whether the updates have one norm at all recorded steps, and the gradients have not.
        infinite_moment: Whether the second moment is infinite, so that Adam's updates are zero.
        no_gradient: Whether all gradients are exactly zero at all recorded steps; a weight decay makes updates still.
        may_clip: Whether the optimizer of a loop of the user's own may clip, where no second moment divides by as much.
        clip: The clip of `train` without which they would not be so small; None where there is none.
        clip_leaves: The share of the gradients that it leaves, the median of the recorded steps.
    """

    moved: float
    second_moment: float | None
    one_norm: bool
    infinite_moment: bool = False
    no_gradient: bool = False
    may_clip: bool = False
    clip: str | None = None
    clip_leaves: float | None = None


def small_updates(
    history: History, steps: Mapping[str, np.ndarray], losses: Mapping[str, np.ndarray]
) -> SmallUpdates | None:
    """Returns how little a run moves its parameters; None where it moves them, or where that is not known.

    Args:
        history: The run's history.
        steps: What was recorded of each step, by column.
        losses: `step` and `loss` of each step whose loss is known.

    Raises:
        DumpError: The history is damaged.
    """
    norms = history.columns(("l2",))
    gradients = series_of(history, norms, naming.PARAM_GRAD, "l2")
    reached = frozenset(name for name, l2 in gradients.items() if l2[-1] > 0)
    updates = _norm_of(reached, series_of(history, norms, naming.UPDATE, "l2"), steps["update_norm"])
    params = _norm_of(reached, series_of(history, norms, naming.PARAM, "l2"), steps["param_norm"])
    known = np.isfinite(updates) & (params > 0)
    if not known.any() or not len(losses["step"]):
        return None
    moved = float((updates[known] / params[known]).max() * len(losses["step"]))
    infinite, no_gradient = _is_infinite(history, reached), bool((steps["grad_norm"] == 0).all())
    if not (moved > 0 or infinite or no_gradient) or moved >= _HARDLY:
        return None
    moment, begun = _second_moment(history, reached), float(np.sqrt(1 - _DECAY ** (float(steps["step"].max()) + 1)))
    below = moment if moment is not None and moment < EPSILON * begun else None
    leaves = _left_by_clip(history, steps)
    if below is not None:
        is_clip = leaves < _CLIPPED and below / leaves >= EPSILON * begun
    else:
        is_clip = leaves < _CLIPPED and moved / leaves >= _HARDLY and _is_proportional(history, steps)
    return SmallUpdates(
        moved=moved,
        second_moment=below,
        one_norm=known.sum() >= _FEWEST and _spread(updates[known]) < _SAME and _spread(steps["grad_norm"]) > _OTHER,
        infinite_moment=infinite,
        no_gradient=no_gradient,
        may_clip=_OPTIMIZER not in history.facts and not _is_normalised(history),
        clip=history.facts[_CLIP] if is_clip else None,
        clip_leaves=leaves if is_clip else None,
    )


def _is_normalised(history: History) -> bool:
    return any(tensor.family == _MOMENT for tensor in history.tensors.values())


def _left_by_clip(history: History, steps: Mapping[str, np.ndarray]) -> float:
    """Returns the share of the gradients that the clip of `train` leaves, in the median; 1 where there is none."""
    before, after = steps["grad_norm"], steps["grad_norm_clipped"]
    known = np.isfinite(before) & (after > 0)
    if _CLIP not in history.facts or _MULTIPLIED in history.facts or not known.any():
        return 1.0
    return float(np.median(after[known] / before[known]))


def _is_proportional(history: History, steps: Mapping[str, np.ndarray]) -> bool:
    """Returns whether updates are as small as their gradients are, as without a division by a second moment."""
    proportional = _OF_MOMENTUM * steps["learning_rate"] * steps["grad_norm_clipped"]
    return not _is_normalised(history) and bool((steps["update_norm"] <= proportional).all())


def _spread(norms: np.ndarray) -> float:
    finite = norms[np.isfinite(norms)]
    return float((finite.max() - finite.min()) / finite.max()) if finite.size and finite.max() > 0 else 0.0


def _second_moment(history: History, reached: Collection[str]) -> float | None:
    """Returns the root of the mean of `nu` at the last recorded step, the median over the parameters."""
    last = _last_of_moment(history, reached, "mean")
    return float(np.sqrt(np.median(last))) if last and min(last) >= 0 else None


def _is_infinite(history: History, reached: Collection[str]) -> bool:
    """Returns whether `nu` has an infinity at the last recorded step, for most parameters."""
    last = _last_of_moment(history, reached, "inf")
    return bool(last) and float(np.median([each > 0 for each in last])) == 1.0


def _last_of_moment(history: History, reached: Collection[str], column: str) -> list[float]:
    """Returns a column of `nu` at the last recorded step, of what a gradient reaches, or of all where that is none."""
    if not _is_normalised(history):
        return []
    moments = series_of(history, history.columns((column,)), _MOMENT, column)
    return [float(each[-1]) for name, each in moments.items() if not reached or name in reached]


def _norm_of(reached: Collection[str], norms: Mapping[str, np.ndarray], whole: np.ndarray) -> np.ndarray:
    """Returns a family's norms at the recorded steps without what no gradient reaches, where there is such."""
    of_reached = [each for name, each in norms.items() if name in reached]
    if not of_reached or len(of_reached) == len(norms) or {each.shape for each in of_reached} != {whole.shape}:
        return whole
    return np.sqrt(np.square(of_reached).sum(axis=0))
