"""Two training runs diverge at the first step, and in it at the first tensor in the order of a step, that differs.

A history has statistics and no elements. What is compared is the least `rel_l2` that two tensors can have by them
(`metrics/bounds.py`): over the tolerance it proves a difference, below it nothing.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from gradscope import naming
from gradscope.comparison.diagnosis.runs.differing_rows import difference_of
from gradscope.comparison.diagnosis.runs.packed_in_runs import Packed, packed_parameters
from gradscope.comparison.diagnosis.runs.run_differences import provenance_differences
from gradscope.comparison.diagnosis.runs.run_rounding import RunRounding
from gradscope.comparison.diagnosis.runs.run_stages import (
    OF_LAYERS,
    STEP,
    RunRow,
    place_in_step,
    without_other_layers,
)
from gradscope.comparison.diagnosis.runs.run_tensors import exchanged_layers, in_order_of_step, run_tensors
from gradscope.comparison.diagnosis.runs.run_tolerances import RunTolerances, admits
from gradscope.comparison.judging.compare_options import CompareOptions
from gradscope.comparison.judging.rows import Verdict
from gradscope.comparison.judging.tolerance_rules import Tolerance
from gradscope.comparison.metrics.bounds import least_rel_l2
from gradscope.dump.manifest.json_text import with_nonfinite_strings
from gradscope.dump.record import Json
from gradscope.history.history_reader import History
from gradscope.history.history_rows import TensorRow
from gradscope.naming.wording import counted

#: Version of the JSON: it increases when a key changes its meaning or is removed.
SCHEMA: Final = 1

#: The numbers of a step that are compared: the norms among the others follow from the tensors.
_NUMBERS: Final = ("loss", "learning_rate")

#: Those that not every run records.
_MAY_BE_UNSTATED: Final = ("learning_rate",)

#: The statistic that depends on which step was recorded before, which a run that was resumed has otherwise.
_OF_TWO_STEPS: Final = "cosine"

#: What differs between any two runs and says nothing about them.
_OF_THE_COMMAND: Final = ("argv",)

#: The statistics of a tensor at a step, to find those of equal ones.
_Values = frozenset[tuple[str, Json]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDivergence:
    """`RunDivergence` is the result of comparing two runs; it is true where they are the same.

    Attributes:
        steps: The steps that both runs recorded and that were compared.
        largest: The largest bound of `rel_l2` of each of them.
        first_step: The first step that differs; None where none does.
        rows: The tensors at that step, or at the last one where none differs, in the order of the step.
        ref_only: How many steps only the reference recorded.
        cand_only: How many steps only the candidate recorded.
        rounded: The parameters whose gradients differ because they are zero but for rounding, up to the step of `rows`:
            that is no difference.
        packed: The parameters of one run that hold several of the other one, by their statistics.
        exchanged: Two layers that both runs have, of which each comes first in one of them; empty for none.
        provenance_differences: `field`, `ref` and `cand` of each difference between how the runs were made.

    Example:
        >>> import gradscope as gs
        >>> found = gs.RunDivergence(steps=(), largest=(), first_step=None, rows=(), ref_only=2, cand_only=3)
        >>> bool(found), found.sentence
        (False, 'Nothing compared: the runs have no recorded step in common.')
    """

    steps: tuple[int, ...]
    largest: tuple[float, ...]
    first_step: int | None
    rows: tuple[RunRow, ...]
    ref_only: int = 0
    cand_only: int = 0
    rounded: tuple[str, ...] = ()
    packed: tuple[Packed, ...] = ()
    exchanged: tuple[str, ...] = ()
    provenance_differences: tuple[Mapping[str, Json], ...] = field(default=())

    def __bool__(self) -> bool:
        return self.verdict == "same"

    @property
    def verdict(self) -> Verdict:
        """`same` as far as statistics tell, `different`, or `nothing compared`."""
        if not self.steps or not any(row.bound is not None for row in self.rows):
            return "nothing compared"
        return "same" if self.first_step is None else "different"

    @property
    def first(self) -> RunRow | None:
        """The first tensor or number, in the order of the step, that differs at the first step that does."""
        return None if self.first_step is None else next(row for row in self.rows if row.differs)

    @property
    def sentence(self) -> str:
        """The verdict as a sentence."""
        if self.verdict == "nothing compared":
            why = "no tensor in common" if self.steps else "no recorded step in common"
            return f"Nothing compared: the runs have {why}."
        first = self.first
        if first is None:
            zeros = f", {len(self.rounded):,} zero but for rounding" if self.rounded else ""
            return f"As far as statistics tell, {counted(len(self.steps), 'step')} the same{zeros}."
        before = self.steps.index(self.first_step or 0)
        agreeing = f"{counted(before, 'recorded step')} the same, then" if before else "From the first one on:"
        return f"{agreeing} step {self.first_step} differs, first in the {first.stage}: {difference_of(first)}."

    def to_json(self) -> dict[str, Json]:
        """Returns the comparison as JSON, as `compare --json` prints it: NaN and infinities are strings."""
        first = self.first
        facts: dict[str, Json] = {
            "schema": SCHEMA,
            "command": "compare",
            "verdict": self.verdict,
            "sentence": self.sentence,
            "first_step": self.first_step,
            "first": None if first is None else first.to_json(),
            "compared_steps": len(self.steps),
            "largest": [{"step": step, "rel_l2_at_least": bound}
                        for step, bound in zip(self.steps, self.largest, strict=True)],
            "ref_only_steps": self.ref_only,
            "cand_only_steps": self.cand_only,
            "rounded": list(self.rounded) or None,
            "exchanged": list(self.exchanged) or None,
            "packed": [each.to_json() for each in self.packed] or None,
            "rows": [row.to_json() for row in self.rows],
            "provenance_differences": [dict(difference) for difference in self.provenance_differences],
        }  # fmt: skip
        return {name: with_nonfinite_strings(fact) for name, fact in facts.items() if fact is not None}


def compare_runs(ref: History, cand: History, options: CompareOptions) -> RunDivergence:
    """Compares two runs at the steps that both recorded.

    Args:
        ref: The reference.
        cand: The candidate.
        options: The names that take part, the tolerances, and names that may be in one run only.

    Raises:
        UsageError: A pattern matches nothing, or a tolerance is about something else than `rel_l2`.
        DumpError: One of the histories is damaged.
    """
    ours, theirs = ref.steps(), cand.steps()
    stated = {name for name in _NUMBERS if all(np.isfinite(side[name]).any() for side in (ours, theirs))}
    judge = _Judge(ref, cand, options, stated)
    common = np.intersect1d(ours["step"], theirs["step"])
    largest: list[float] = []
    rounded: dict[str, None] = {}
    shown: tuple[int | None, tuple[RunRow, ...]] = (None, ())
    for step in common.tolist():
        rows = judge.rows(step, _numbers(ours, step), _numbers(theirs, step))
        bounds = (row.bound for row in rows if row.bound is not None and not row.rounding)
        largest.append(max(bounds, default=0.0))
        if shown[0] is None:
            rounded |= dict.fromkeys(row.rounding for row in rows if row.rounding)
            shown = (step if any(row.differs for row in rows) else None), rows
    return RunDivergence(
        steps=tuple(common.tolist()), largest=tuple(largest), first_step=shown[0], rows=shown[1],
        ref_only=len(ours["step"]) - len(common), cand_only=len(theirs["step"]) - len(common), rounded=tuple(rounded),
        exchanged=exchanged_layers(judge.tensors, shown[1]),
        packed=packed_parameters(ref, cand, judge.tensors, common[:1].tolist()),
        provenance_differences=provenance_differences(_facts(ref), _facts(cand)),
    )  # fmt: skip


class _Judge:
    """Judges the tensors of one step after the other."""

    def __init__(self, ref: History, cand: History, options: CompareOptions, stated: Collection[str]) -> None:
        self._ref, self._cand, self._options = ref, cand, options
        tolerances = RunTolerances(ref, cand, options)
        tensors = run_tensors(ref, cand)
        names = [name for each in tensors for name in (each.tensor.name, each.tensor.key)]
        options.require_matches(names, [*_NUMBERS, *(f"{STEP}/{name}" for name in _NUMBERS)])
        chosen = [each for each in tensors if options.selection.selects(each.tensor.name, each.tensor.key)]
        self._unpaired = any(None in (each.ref, each.cand) for each in chosen)
        self._names = {each.tensor.key: cand.tensors[each.cand].name for each in chosen if each.cand is not None}
        self.tensors = in_order_of_step(chosen)
        # A loop of the user's own is recorded without its batch, and with a learning rate only where its optimizer
        # states one: what a run never recorded tells nothing about it.
        self._without_batch = not all(any(map(_is_input, run.tensors.values())) for run in (ref, cand))
        self._step_numbers = [name for name in _NUMBERS if name not in _MAY_BE_UNSTATED or name in stated]
        self._rounding = RunRounding(ref, tensors, products=tolerances.products)
        self._of_numbers = {name: tolerances.of_number(name) for name in self._step_numbers}
        self._at_first, self._tolerances = (
            {each.tensor.key: tolerances.of(each, first=first) for each in self.tensors} for first in (True, False)
        )
        self._first: int | None = None

    def rows(self, step: int, ref: Mapping[str, float], cand: Mapping[str, float]) -> tuple[RunRow, ...]:
        """Returns the rows of a step, in the order of the step.

        Args:
            step: The step.
            ref: The reference's numbers of the step.
            cand: The candidate's.
        """
        ours, theirs = self._ref.stats_at(step), self._cand.stats_at(step)
        self._first = step if self._first is None else self._first
        tolerances = self._at_first if step == self._first else self._tolerances
        self._rounding.step(step, ours, theirs)
        sides = [
            (each.tensor, {} if each.ref is None else ours.get(each.ref, {}),
             {} if each.cand is None else theirs.get(each.cand, {}))
            for each in self.tensors
        ]  # fmt: skip
        pairs = [(tensor, one, other) for tensor, one, other in sides if one and other and self._unpaired]
        compared = {(tensor.family, _values(side)) for tensor, *both in pairs for side in both}
        rows = [self._row(tensor, one, other, compared, tolerances[tensor.key]) for tensor, one, other in sides]
        if not self._options.selection.select:
            rows += [self._number_row(name, ref[name], cand[name]) for name in self._step_numbers]
        known = [replace(row, counterpart=self._names.get(row.key, "")) for row in rows if row is not None]
        found = without_other_layers(known)
        return tuple(sorted(found, key=lambda row: place_in_step(row.family, row.name)))

    def _row(
        self, tensor: TensorRow, ref: Mapping[str, float | int], cand: Mapping[str, float | int],
        compared: Collection[tuple[str, _Values]], tolerance: Tolerance | None,
    ) -> RunRow | None:  # fmt: skip
        if not ref and not cand:
            return None
        if not ref or not cand:
            return RunRow(
                name=tensor.name, family=tensor.family, status="missing" if ref else "extra",
                counts=not (
                    self._options.may_be_missing(tensor.name, tensor.key)
                    or (self._without_batch and tensor.family == naming.INPUT)
                    # A layer has further names where it is called in another one: `layers#2` is `layers/1`.
                    or (tensor.family in OF_LAYERS and (tensor.family, _values(ref or cand)) in compared)
                ),
            )  # fmt: skip
        bound = least_rel_l2(ref, cand)
        least, by = (0.0, "") if bound is None else (bound.rel_l2, bound.statistic)
        same = _of_one_step(ref) == _of_one_step(cand) if tolerance is None else admits(tolerance, least)
        rounding = "" if same or tolerance is None else self._rounding.explains(tensor, ref, cand)
        return RunRow(
            name=tensor.name, family=tensor.family, status="same" if same or rounding else "different", bound=least,
            tolerance=None if tolerance is None else tolerance.stated, ref=ref.get("l2"), cand=cand.get("l2"),
            statistic=by, ref_statistic=ref.get(by), cand_statistic=cand.get(by), rounding=rounding,
        )  # fmt: skip

    def _number_row(self, name: str, ref: float, cand: float) -> RunRow | None:
        if math.isnan(ref) and math.isnan(cand):
            return None
        scale = abs(ref)
        change = math.inf if math.isnan(ref) or math.isnan(cand) else abs(cand - ref)
        least = change / scale if scale else (math.inf if change else 0.0)
        tolerance = self._of_numbers[name]
        same = least == 0 if tolerance is None else admits(tolerance, least)
        return RunRow(
            name=name, family=STEP, status="same" if same else "different", bound=least,
            tolerance=None if tolerance is None else tolerance.stated,
            ref=None if math.isnan(ref) else ref, cand=None if math.isnan(cand) else cand,
        )  # fmt: skip


def _is_input(tensor: TensorRow) -> bool:
    return tensor.family == naming.INPUT


def _of_one_step(stats: Mapping[str, Json]) -> dict[str, Json]:
    return {name: value for name, value in stats.items() if name != _OF_TWO_STEPS}


def _values(stats: Mapping[str, Json]) -> _Values:
    return frozenset(_of_one_step(stats).items())


def _numbers(steps: Mapping[str, np.ndarray], step: int) -> dict[str, float]:
    at = int(steps["step"].searchsorted(step))
    return {name: float(steps[name][at]) for name in _NUMBERS}


def _facts(history: History) -> dict[str, Json]:
    return {name: value for name, value in history.facts.items() if name not in _OF_THE_COMMAND}
