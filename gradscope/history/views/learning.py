"""States what a whole run says of whether it learns, beside its alarms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from json import loads
from typing import Final, cast

import numpy as np

from gradscope.dump.record import Json
from gradscope.history.alarms.alarm_rules import NONFINITE
from gradscope.history.database.schema import FAULTS
from gradscope.history.history_reader import History
from gradscope.history.history_rows import LossFault
from gradscope.history.views.broken_bounds import BrokenBound, broken_bounds
from gradscope.history.views.loss_fall import NoFall, no_fall
from gradscope.history.views.recorded_batches import RecordedBatches, recorded_batches
from gradscope.history.views.updates.between_updates import BetweenUpdates, between_updates
from gradscope.history.views.updates.climbing import Climb, climb, climbing_parameters
from gradscope.history.views.updates.frozen_parameters import frozen_parameters
from gradscope.history.views.updates.left_out_updates import LeftOutUpdates, left_out_updates
from gradscope.history.views.updates.rounded_updates import rounded_parameters
from gradscope.history.views.updates.shrinking import Shrinking, shrinking
from gradscope.history.views.updates.small_updates import SmallUpdates, small_updates
from gradscope.history.views.updates.uneven_updates import UnevenUpdates, uneven_updates
from gradscope.naming import printable


@dataclass(frozen=True, slots=True, kw_only=True)
class Learning:
    """`Learning` is what a run says of whether it learns.

    Attributes:
        faults: What is wrong with the program of the loss, whatever its numbers are.
        left_out: The updates that all recorded steps leave out, as gradients are not finite; None where one makes any.
        frozen: The parameters that no recorded step changes though they have a gradient.
        between: That all recorded steps are between two updates; None where they are not.
        rounded: The parameters that are too coarse for their updates, which are lost when they are added.
        level: How the loss has hardly fallen; None where it has.
        small: Of a loss that has hardly fallen, how little the updates move the parameters; None where they do.
        uneven: Of a loss that has hardly fallen, how unevenly the updates move the parameters; None where they do not.
        shrinking: Of a loss that has hardly fallen, how the parameters shrink away; None where they do not.
        climb: How the updates climb the loss; None where they do not.
        climbing: The parameters whose updates alone climb the loss, while those of others descend.
        batches: What is unusual in the recorded batches.
        bounds: The integers of these that are beyond what they look up.
    """

    faults: tuple[LossFault, ...] = ()
    left_out: LeftOutUpdates | None = None
    frozen: tuple[str, ...] = ()
    between: BetweenUpdates | None = None
    rounded: tuple[str, ...] = ()
    level: NoFall | None = None
    small: SmallUpdates | None = None
    uneven: UnevenUpdates | None = None
    shrinking: Shrinking | None = None
    climb: Climb | None = None
    climbing: tuple[str, ...] = ()
    batches: RecordedBatches = RecordedBatches()  # noqa: RUF009 - frozen
    bounds: tuple[BrokenBound, ...] = ()

    @property
    def words(self) -> frozenset[str]:
        """The words of `LEARNING_WORDS` for what there is to say, or the name of an alarm."""
        climbs = self.climb or self.climbing
        said = {NONFINITE: self.left_out, "between-updates": self.between, "unchanged": self.frozen,
                "rounded": self.rounded,
                "learning": self.level, "climbing": climbs, "sorted": self.batches.sorted,
                "out-of-bounds": self.bounds}  # fmt: skip
        return frozenset({*(each.rule for each in self.faults), *(word for word, found in said.items() if found)})

    def to_json(self) -> dict[str, Json]:
        """Returns what there is to say, by name."""
        found: dict[str, Json] = {"faults": [each.to_json() for each in self.faults]} if self.faults else {}
        found |= {} if self.left_out is None else {"left_out": asdict(self.left_out)}
        found |= {"unchanged": list(self.frozen)} if self.frozen else {}
        found |= {} if self.between is None else {"between_updates": asdict(self.between)}
        found |= {"rounded": list(self.rounded)} if self.rounded else {}
        small: dict[str, Json] = {} if self.small is None else asdict(self.small)
        small = {name: each for name, each in small.items() if each is not None}
        shrinks: dict[str, Json] = {} if self.shrinking is None else {"shrinking": asdict(self.shrinking)}
        uneven: dict[str, Json] = {} if self.uneven is None else {"uneven": asdict(self.uneven)}
        found |= {} if self.level is None else {"level": asdict(self.level) | small | uneven | shrinks}
        batches: dict[str, Json] = {name: each for name, each in asdict(self.batches).items() if each}
        found |= {"batches": batches} if batches else {}
        found |= {"bounds": [asdict(each) for each in self.bounds]} if self.bounds else {}
        climbs: dict[str, Json] = {} if self.climb is None else asdict(self.climb)
        climbs |= {"parameters": list(self.climbing)} if self.climbing else {}
        return {**found, "climbing": climbs} if climbs else found


#: The words of what may be meant in the program of a loss.
LOSS_DOUBTS: Final = ("rectified", "squashed", "softmax", "evaluation", "repeated", "stale", "misapplied")
#: Those of faults in it.
LOSS_FAULTS: Final = ("broadcast", "saturated")
#: Those of what may be meant: a loss is maximised or levels off, a part of the model is frozen, a batch has one class,
#: padding is masked, recorded steps are between two updates.
MEANT_WORDS: Final = (
    *LOSS_DOUBTS,
    "climbing",
    "learning",
    "unchanged",
    "between-updates",
    "rounded",
    "sorted",
    "out-of-bounds",
)
#: All words of what a run may say.
LEARNING_WORDS: Final = (*LOSS_FAULTS, *MEANT_WORDS)
#: Of a run that learns, and of a report on one of its steps.
NOTHING_TO_SAY: Final = Learning()


def learning(history: History, steps: Mapping[str, np.ndarray], losses: Mapping[str, np.ndarray]) -> Learning:
    """Returns what a run says.

    Args:
        history: Its history.
        steps: What was recorded of each step, by column.
        losses: `step` and `loss` of each step whose loss is known.

    Raises:
        DumpError: The history is damaged.
    """
    level, climbs = no_fall(steps, losses), climb(history, losses)
    return Learning(
        faults=stated_faults(history), left_out=left_out_updates(steps, losses),
        frozen=frozen_parameters(history), between=between_updates(history, steps),
        rounded=rounded_parameters(history), level=level, climb=climbs,
        small=None if level is None else small_updates(history, steps, losses),
        uneven=None if level is None else uneven_updates(history),
        shrinking=None if level is None else shrinking(history),
        climbing=() if climbs is not None else climbing_parameters(history, falls=level is None),
        batches=recorded_batches(history), bounds=broken_bounds(history),
    )  # fmt: skip


def stated_faults(history: History) -> tuple[LossFault, ...]:
    """Returns the faults of its loss that a history states; none where it states something else, as anybody's may.

    Args:
        history: The run's history.
    """
    try:
        found = cast("object", loads(history.facts.get(FAULTS, "[]")))
    except (ValueError, RecursionError):
        return ()
    pairs = cast("list[object]", found) if isinstance(found, list) else []
    return tuple(fault for pair in pairs for fault in _stated(pair))


def _stated(fault: object) -> Iterator[LossFault]:
    match fault:
        case [str(rule), str(why)] | [str(rule), str(why), None]:
            yield LossFault(printable(rule), printable(why))
        case [str(rule), str(why), str(source)]:
            yield LossFault(printable(rule), printable(why), printable(source))
        case _:
            pass
