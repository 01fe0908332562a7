"""These classes are the rows of a history's tables."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from json import dumps
from typing import NamedTuple, SupportsIndex

from gradscope import naming
from gradscope.dump.record import Json
from gradscope.errors import UsageError
from gradscope.history.database.schema import COUNTS, LARGEST
from gradscope.history.value_histograms import ValueHistogram


def known_numbers(columns: Mapping[str, float | int]) -> dict[str, Json]:
    """Returns the columns of a history that are not NaN, which stands for no value; counts are whole numbers."""
    known = {name: value for name, value in columns.items() if not math.isnan(value)}
    return {name: int(value) if name in COUNTS else value for name, value in known.items()}


def step_number(name: str, value: SupportsIndex, least: int = 0) -> int:
    """Returns the number of a step, or of steps, as a history can have it.

    Args:
        name: What the number is called.
        value: The number, also as a scalar of NumPy or JAX.
        least: The least number that is one.

    Raises:
        UsageError: It is no whole number, or out of its range.
    """
    try:
        number = operator.index(value)
    except TypeError as error:
        raise UsageError(f"{name} is {value!r}, which is no whole number") from error
    if not least <= number <= LARGEST:
        raise UsageError(f"{name} is {number}", hint=f"{name} is a whole number from {least} to 2**53")
    return number


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRow:
    """A `TensorRow` is a tensor that a run observes, the same at each recorded step.

    Attributes:
        family: Its family; `slot/mu` for an optimizer's variable.
        name: Its name.
        shape: Its shape; None where it is not known.
        dtype: Its logical dtype's name.
        layer: The layer that outputs it, or for a parameter the one that uses it; None where there is none.
        source: `file:line` in the user's code; None where unknown.
    """

    family: str
    name: str
    shape: tuple[int, ...] | None = None
    dtype: str | None = None
    layer: str | None = None
    source: str | None = None

    @property
    def key(self) -> str:
        """The tensor's key."""
        return naming.key_of(self.family, self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """An `Alarm` states what was wrong at a step.

    Attributes:
        step: The step.
        rule: The name of the rule.
        why: The reason, as the predicate of a sentence.
        key: The tensor's key; None where it is of the step.
        value: The number that the rule is about; None for none, and where it is no number.
        limit: The limit that it passed; None for none.
        folder: The folder in the run where the state before the step and its batch are; None where nothing was saved.
    """

    step: int
    rule: str
    why: str
    key: str | None = None
    value: float | None = None
    limit: float | None = None
    folder: str | None = None


class LossFault(NamedTuple):
    """A `LossFault` is what is wrong with the program of a run's loss, whatever its numbers are.

    Attributes:
        rule: The rule of findings that a dump of the loss would trip.
        why: A sentence, with the line.
        source: `file:line` in the user's code; None where unknown.
    """

    rule: str
    why: str
    source: str | None = None

    @property
    def notice(self) -> str:
        """The sentence with the rule and the command that says what to do."""
        return f"{self.rule}: {self.why}; 'gradscope explain {self.rule}' says what to do"

    def to_json(self) -> dict[str, Json]:
        """Returns its fields; those that are unknown are left out."""
        return {name: value for name, value in self._asdict().items() if value is not None}


class IndexBound(NamedTuple):
    """An `IndexBound` is how many rows, values or classes there are for an array of integers of the batch to look up.

    Attributes:
        input: The name of the array.
        looked_up: `rows` of a table of parameters; `values` of which one is picked for each example, as by a label; or
            `classes`, of which each makes a row of zeros with a 1 at its place (`one_hot`).
        rows: How many there are.
        table: The name of the parameter; None where several make the table, or none.
        source: `file:line` in the user's code; None where unknown.
    """

    input: str
    looked_up: str
    rows: int
    table: str | None = None
    source: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Smoothed:
    """A `Smoothed` has the moving averages of the noise of a gradient.

    Attributes:
        variance: That of the variance.
        signal: That of the signal.
        count: How many measurements are in them.
    """

    variance: float = 0.0
    signal: float = 0.0
    count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """A `StepRecord` has everything that is recorded of one step.

    Attributes:
        numbers: The columns of `schema.STEPS`; those that are missing become NULL.
        stats: The columns of `schema.STATS` by the tensor's key, likewise.
        unchanged: Whether the step left a trained parameter as it was, by name, as far as that is known; the rules of
            alarms read it, and no table has it.
        histograms: The histogram of each tensor by its key, where they are recorded.
        noise: The columns of `schema.NOISE` by the key of a parameter's gradient, of all trained parameters together by
            None; where it is recorded.
    """

    numbers: Mapping[str, float | int | None]
    stats: Mapping[str, Mapping[str, float | int | None]] = field(
        default_factory=dict[str, Mapping[str, float | int | None]]
    )
    unchanged: Mapping[str, bool] = field(default_factory=dict[str, bool])
    histograms: Mapping[str, ValueHistogram] = field(default_factory=dict[str, ValueHistogram])
    noise: Mapping[str | None, Mapping[str, float | int | None]] = field(
        default_factory=dict[str | None, Mapping[str, float | int | None]]
    )


def fact_texts(facts: Mapping[str, object]) -> dict[str, str]:
    """Returns what a run states about itself as the table has it: a text as it is, all else as JSON."""
    return {name: value if isinstance(value, str) else dumps(value) for name, value in facts.items()}
