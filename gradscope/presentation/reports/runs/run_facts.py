"""The facts about a run are the lines below its tables: its loss, its steps, and what stays as it is."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from gradscope.history.history_rows import LossFault
from gradscope.history.views.broken_bounds import BrokenBound
from gradscope.history.views.learning import LOSS_DOUBTS, Learning
from gradscope.history.views.loss_fall import NoFall
from gradscope.history.views.recorded_batches import SortedInput
from gradscope.history.views.updates.climbing import Climb
from gradscope.history.views.updates.left_out_updates import leaves_out
from gradscope.history.views.updates.small_updates import EPSILON, SmallUpdates
from gradscope.naming import printable
from gradscope.naming.wording import percent
from gradscope.presentation.render.document import Note
from gradscope.presentation.render.screen import BAD, DIM, Screen
from gradscope.presentation.tables.facts import parameters_of_parts
from gradscope.presentation.tables.numbers import count, number
from gradscope.presentation.tables.over_time.sparkline import sparkline

#: Columns of the loss's sparkline.
_LOSS_WIDTH: Final = 40
#: A clip is named that leaves at most this share of the gradients, at each of so many recorded steps or more: large
#: models begin with gradients that are a hundred times a clip.
_HARDLY_LEFT: Final = 1e-3
_FEWEST_CLIPPED: Final = 5


def run_facts(
    path: str, steps: Mapping[str, np.ndarray], losses: Mapping[str, np.ndarray], *, taken: int, at: int | None,
    resumed_from: int | None, learning: Learning, screen: Screen,
) -> Sequence[Note]:  # fmt: skip
    """Returns the facts about a run, as notes.

    Args:
        path: The run's folder, as the user named it.
        steps: What was recorded of each step, by column.
        losses: `step` and `loss` of each step whose loss is known.
        taken: How many steps the run has taken.
        at: The step that tables are of; None for trends.
        resumed_from: The number of steps before this command; None where it resumed nothing.
        learning: What the run says of whether it learns.
        screen: The screen.
    """
    facts: dict[str, str] = {}
    recorded = steps["step"]
    if losses["loss"].size:
        values = np.where(np.isnan(losses["loss"]), np.inf, losses["loss"]).tolist()
        facts["loss"] = f"{loss_ends(steps, losses)}  {sparkline(values, _LOSS_WIDTH, unicode=screen.unicode)}"
    up_to = f", the last is step {int(recorded[-1])}" if len(recorded) else ""
    facts["steps"] = f"{steps_words(taken, steps, learning)}{up_to}"
    if at is not None:
        facts["tables"] = f"of step {at}"
    if resumed_from is not None:
        facts["resumed"] = f"after {count(resumed_from)} steps"
    facts["run"] = path
    notes = [Note(label=label, text=text) for label, text in facts.items()]
    return [*notes[:1], *learning_notes(learning), *clip_notes(steps), *notes[1:]]


def clip_notes(steps: Mapping[str, np.ndarray]) -> list[Note]:
    """Returns a note where hardly anything of the gradients is left by what clips them, at every recorded step.

    Such a clip sets the size of each step, and not that of outliers. Where that is meant, nothing is wrong.

    Args:
        steps: What was recorded of each step, by column.
    """
    norms, clipped = steps.get("grad_norm"), steps.get("grad_norm_clipped")
    if norms is None or clipped is None:
        return []
    known = np.isfinite(norms) & (norms > 0) & (clipped > 0)
    shares = clipped[known] / norms[known]
    if len(shares) < _FEWEST_CLIPPED or shares.max() > _HARDLY_LEFT:
        return []
    text = (
        f"at every recorded step, what clips or multiplies the gradients leaves {float(np.median(shares)):.2g} of "
        "their norm (the median): an optimizer that does not divide by their size hardly moves, and a clip makes all "
        "steps about equally large; where that is not meant, clip less"
    )
    return [Note(label="clip", text=text)]


def steps_words(taken: int, steps: Mapping[str, np.ndarray], learning: Learning) -> str:
    """Returns how many steps a run has taken and recorded, and what is to know of the batches and updates of these.

    Args:
        taken: How many it has taken.
        steps: What was recorded of each step, by column.
        learning: What the run says of its batches.
    """
    left_out = int(leaves_out(steps).sum())
    of_updates = f"{count(left_out)} made no update, as gradients were not finite" if left_out else ""
    parts = [each for each in ("all of one batch" if learning.batches.same else "", of_updates) if each]
    words = f" ({'; '.join(parts)})" if parts else ""
    return f"{count(taken)} taken, {count(len(steps['step']))} recorded{words}"


def loss_ends(steps: Mapping[str, np.ndarray], losses: Mapping[str, np.ndarray]) -> str:
    """Returns the first and the last loss that are known, the last with its step where that was not recorded.

    One loss is both. Of losses that are not finite in the end, it has the step from which on they are not; of those
    that are not at both ends, how many are not.

    Args:
        steps: What was recorded of each step, by column.
        losses: `step` and `loss` of each step whose loss is known, of one or more.
    """
    values, at, recorded = losses["loss"], losses["step"], steps["step"]
    ends = f"{_shown(values[0])} to {_shown(values[-1])}" if len(values) > 1 else _shown(values[0])
    finite = np.flatnonzero(np.isfinite(values))
    if len(values) > 1 and not np.isfinite(values[[0, -1]]).any():
        return f"{_shown(values[-1])} at {len(values) - len(finite)} of {len(values)} steps"
    broken = int(finite[-1]) + 1 if finite.size else 0
    if 0 < broken < len(values) - 1:
        return f"{ends} from step {at[broken]} on"
    beyond = len(recorded) > 0 and at[-1] > recorded[-1]
    return ends + (f" at step {at[-1]}" if beyond else "")


def _shown(value: float) -> str:
    return "not a number" if math.isnan(value) else number(float(value))


def learning_notes(learning: Learning) -> list[Note]:
    """Returns what a run says of whether it learns, as notes; none where it learns.

    Args:
        learning: What it says.
    """
    facts: dict[str, str] = {}
    if learning.climb is not None:
        facts["climbing"] = _climbing(learning.climb)
    elif learning.climbing:
        facts["climbing"] = (
            f"the updates of {parameters_of_parts(learning.climbing)} point along their gradients at every recorded "
            "step, which raises the loss, and those of the others do not: where that is not meant, they have the other "
            "sign, or a weight decay that outweighs the gradient"
        )
    if learning.level is not None:  # behind why
        facts["learning"] = _learning(learning.level, learning)
    if frozen := learning.frozen:
        them, they = ("it", "it has") if len(frozen) == 1 else ("them", "they have")
        facts["unchanged"] = f"{parameters_of_parts(frozen)}: no recorded step changes {them}, though {they} a gradient"
    if (between := learning.between) is not None:
        facts["between-updates"] = (
            f"all updates of the {count(between.count)} recorded steps are 0, though the parameters move between them, "
            "as where the optimizer updates once in several steps, and at none of these: nothing is known of its "
            f"updates; record every {count(_next_prime(between.every))} steps, and not every {count(between.every)}"
        )
    if learning.rounded:
        facts["rounded"] = (
            f"{parameters_of_parts(learning.rounded)}: no recorded update moves an element of half the rms or more, "
            "as it is less than half the distance to the next value: keep them as float32, and cast them in the loss"
        )
    if learning.batches.sorted:
        facts["sorted"] = " and ".join(map(_sorted, learning.batches.sorted))
    if learning.bounds:
        facts["out-of-bounds"] = "; ".join(map(_beyond, learning.bounds))
    return [*fault_notes(learning.faults), *(Note(label=label, text=text) for label, text in facts.items())]


def fault_notes(faults: Iterable[LossFault]) -> list[Note]:
    """Returns what is wrong with the program of a loss, and what may be meant in it, as notes.

    Args:
        faults: What the run states.
    """
    return [Note(label=each.rule, text=each.why, style=DIM if each.rule in LOSS_DOUBTS else BAD) for each in faults]


def _next_prime(number: int) -> int:
    """Returns the next prime number above another one: it divides hardly any number of steps that make an update."""
    return next(each for each in itertools.count(number + 1) if all(each % by for by in range(2, math.isqrt(each) + 1)))


def _sorted(by: SortedInput) -> str:
    return (
        f"{printable(by.name)} hardly varies within each of the {by.steps} recorded batches, and goes from "
        f"{by.least:g} to {by.most:g} in the order of the steps: where that is not meant, the examples are sorted by "
        "it, so shuffle them"
    )


def _beyond(bound: BrokenBound) -> str:
    place = "" if bound.source is None else f" at {bound.source}"
    name, rows = printable(bound.name), count(bound.rows)
    if bound.looked_up == "rows":
        table = "the table" if bound.table is None else bound.table
        return (
            f"{name} goes up to {count(bound.most)} in the recorded batches, and {table}, which it looks up{place}, "
            f"has {rows} rows: JAX takes the last of them for those beyond, without an error"
        )
    what = "values to pick one of" if bound.looked_up == "values" else "classes"
    then = "JAX takes the last value for" if bound.looked_up == "values" else "one_hot makes zeros of"
    return (
        f"{name} goes up to {count(bound.most)} in the recorded batches and is never 0, and there are {rows} {what}"
        f"{place}, from 0 to {count(bound.rows - 1)}: {then} the label {count(bound.most)}, without an error"
    )


def _climbing(climb: Climb) -> str:
    return (
        f"the updates point along the gradients at all {climb.count} recorded steps where both are known (cosine "
        f"{climb.cosine:.2g} in the median), so that adding them raises the loss: a descent has the other sign"
    )


def _why_small(small: SmallUpdates) -> str:
    clip = (
        ""
        if small.clip is None
        else (f"the clip {printable(small.clip)} leaves {small.clip_leaves:.2g} of the norm of the gradients")
    )
    if small.no_gradient:
        why = "every gradient is exactly zero, which 'gradscope dump' explains"
        return f"{why}: a weight decay makes such updates" if small.moved > 0 else why
    if small.infinite_moment:
        return (
            "the second moment `nu` is infinite, as the square of a gradient is beyond the largest number, so that the "
            "updates are zero: scale the loss down, or clip gradients"
        )
    if small.second_moment is not None:
        below = (
            f"the root of the second moment `nu` is {small.second_moment:.2g}, below the epsilon of {EPSILON:g} that "
            "Adam adds to it by default"
        )
        return f"{below}, so scale the loss up, or epsilon down" if not clip else f"{clip}, so that {below}: clip less"
    if clip:
        return f"{clip}, so clip less, or raise the learning rate as much"
    if small.one_norm:
        return (
            "they have one norm at every recorded step, and the gradients have not, as behind a clip that is active at "
            "each of them, or by an optimizer that takes their signs or divides by their norm"
        )
    or_clip = ", or a clip in the optimizer that leaves little of the gradients" if small.may_clip else ""
    return f"as by a learning rate that is too small, or stays where a warm-up begins{or_clip}"


def _learning(level: NoFall, said: Learning) -> str:
    first, second, last = map(number, (level.first, level.second, level.last))
    means = f"{last} in the last {level.count} of these steps, {second} in the second and {first} in the first"
    updates = "" if level.ratio is None else f"; the updates are {level.ratio:.2g} of the parameters"
    if (small := said.small) is not None:
        moved = f", and all steps together move them by some {percent(small.moved)}" if small.moved > 0 else ""
        updates += f"{moved}: {_why_small(small)}"
    if (uneven := said.uneven) is not None:
        updates += (
            f"; the update of {printable(uneven.least)} is {uneven.least_share:.2g} of it, and that of "
            f"{printable(uneven.most)} {uneven.most_share:.2g}, as where gradients vanish or explode: 'gradscope dump' "
            "names the layers"
        )
    if (shrinking := said.shrinking) is not None:
        updates += (
            f"; {shrinking.parameters} of {shrinking.of} parameters shrink away, to {shrinking.left:.2g} of the norm "
            "that they began with: as by a weight decay that outweighs the gradient"
        )
    return f"the loss has {level.verb}: its mean is {means}{updates} (gradscope explain learning)"
