"""A run as content has curves, statistics and histograms over steps, alarms, and the noise of gradients."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np

from gradscope.dump.record import Json
from gradscope.history.database.tensor_series import TensorSeries
from gradscope.history.history_reader import History
from gradscope.history.history_rows import Alarm, TensorRow
from gradscope.history.value_histograms import ValueHistogram
from gradscope.naming import INPUT, SLOT_PREFIX
from gradscope.presentation.page.content.json_values import Keys, rounded, shortened
from gradscope.presentation.page.content.packed_series import OCTAVE_PARTS, packed
from gradscope.presentation.page.content.streamed_json import Streamed
from gradscope.presentation.page.content.table_content import tables_content
from gradscope.presentation.tables.numbers import count
from gradscope.presentation.tables.over_time.run_tables import (
    GROUPS,
    NOISE_COLUMNS,
    NoiseRow,
    StepRow,
    noise_table,
    step_tables,
)

#: The statistics that are packed, the most important first; `l2` follows from `rms` and the number of elements.
PACKED: Final = ("rms", "amax", "zeros", "mean", "nan", "inf", "ratio", "cosine", "share")
#: By level of detail, the most recorded steps and the number of statistics.
_STEPS: Final = (256, 128, 64, 64, 24, 0)
_STATISTICS: Final = (9, 9, 9, 3, 1, 0)
#: The most steps of which a page has the histograms of tensors, at the first level of detail.
_HISTOGRAM_STEPS: Final = 8
#: The most steps of the curves of a run.
_MOST_CURVE_STEPS: Final = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRun:
    """A `RecordedRun` has all that a page needs of the history of a run, so that the history can be closed.

    Attributes:
        name: The run's folder, as the user named it.
        steps: The recorded steps.
        curves: Numbers of steps over steps, of which a page has some: the loss of all steps, and others of those that
            were recorded.
        alarms: What was wrong.
        tensors: The tensors with statistics, by number.
        columns: Their statistics over steps.
        histogram_steps: All steps with histograms.
        histograms: By some of these steps, the histogram of each tensor.
        noise_steps: The steps at which the noise of gradients was measured.
        noise: By such a step, the noise of each tensor, and of all parameters by None.
    """

    name: str
    steps: np.ndarray
    curves: list[Json]
    alarms: Sequence[Alarm]
    tensors: Mapping[int, TensorRow]
    columns: TensorSeries
    histogram_steps: np.ndarray
    histograms: Mapping[int, Mapping[int, ValueHistogram]]
    noise_steps: np.ndarray
    noise: Mapping[int, Mapping[int | None, Mapping[str, float | int]]]

    @classmethod
    def read(cls, name: str, history: History) -> Self:
        """Returns what a page needs of a history.

        Args:
            name: The run's folder, as the user named it.
            history: Its history.

        Raises:
            DumpError: The history is damaged.
        """
        series = history.columns(PACKED)
        histogram_steps, noise_steps = history.histogram_steps(), history.noise(None)["step"]
        shown = _some(histogram_steps, _HISTOGRAM_STEPS).tolist()
        return cls(
            name=name,
            steps=history.step_numbers(),
            curves=[*_curves(history.losses()), *_curves(history.steps(), without="loss")],
            alarms=history.alarms(),
            tensors={at: row for at, row in history.tensors.items() if at in series},
            columns=series,
            histogram_steps=histogram_steps,
            histograms={step: history.histograms_at(step) for step in shown},
            noise_steps=noise_steps,
            noise={step: history.noise_at(step) for step in _some(noise_steps, _STEPS[0]).tolist()},
        )  # fmt: skip

    def content(self, level: int, keys: Keys) -> RunContent:
        """Returns the run as content at a level of detail."""
        steps = _some(self.steps, _STEPS[level])
        names = PACKED[: _STATISTICS[level]]
        planes = {name: _plane(self.columns, name, self.tensors, steps) for name in names}
        shown = [name for name in names if not np.isnan(planes[name]).all()]
        histograms = {} if level else self.histograms
        noise_steps = [step for step in _some(self.noise_steps, _STEPS[level]).tolist() if step in self.noise]
        series = b"".join(packed(planes[name]) for name in shown)
        noise, noise_series = self._noise(noise_steps, keys, len(series))
        facts: dict[str, Streamed] = {
            "name": shortened(self.name),
            "steps": steps.tolist(),
            "curves": self.curves,
            "keys": [keys.number(tensor.key) for tensor in self.tensors.values()],
            "sizes": [None if tensor.shape is None else math.prod(tensor.shape) for tensor in self.tensors.values()],
            "about": [_about(tensor) for tensor in self.tensors.values()],
            "packed": list(shown),
            "octave_parts": OCTAVE_PARTS,
            "alarms": [
                {"step": each.step, "rule": shortened(each.rule), "why": shortened(each.why),
                 "key": None if each.key is None else keys.number(each.key)}
                for each in self.alarms
            ],
            "groups": _families_by_group(),
            "histograms": [
                {"step": step, "octaves": [_octaves(found.get(at)) for at in self.tensors]}
                for step, found in histograms.items()
            ],
            "noise": noise,
        }  # fmt: skip
        left_out = [
            *_fewer("statistics", len(steps), len(self.steps), "recorded steps"),
            *([f"the statistics {', '.join(PACKED[len(names) :])}"] if len(names) < len(PACKED) else []),
            *_fewer("the histograms", len(histograms), len(self.histogram_steps), "steps"),
            *_fewer("the noise of gradients", len(noise_steps), len(self.noise_steps), "steps"),
        ]
        return RunContent(facts=facts, packed=series + noise_series, left_out=left_out)

    def tables(self, keys: Keys) -> Iterator[Streamed]:
        """Returns the tables of a step, whose cells the scripts replace by those of the step that is chosen."""
        rows = (StepRow(tensor=tensor, stats=self._last(at)) for at, tensor in self.tensors.items())
        return tables_content(step_tables(list(rows)), keys)

    def _last(self, at: int) -> dict[str, float]:
        """Returns the largest of each statistic of a tensor.

        A column that is left out where all of its cells are zero has to be there, if they are not at some step.
        """
        own = self.columns[at]
        stats = {name: _largest(own[name]) for name in PACKED}
        known = {name: value for name, value in stats.items() if not math.isnan(value)}
        return {**known, **({"l2": known["rms"]} if "rms" in known else {})}

    def _noise(self, steps: Sequence[int], keys: Keys, offset: int) -> tuple[Streamed, bytes]:
        """Returns the noise of gradients: of all parameters, then of each; None where none was measured."""
        if not steps:
            return None, b""
        measured = [self.noise[step] for step in steps]
        known = {number for at in measured for number in at}
        numbers = [None, *(number for number in self.tensors if number in known)]
        planes = {
            name: np.array([[at.get(number, {}).get(name, np.nan) for at in measured] for number in numbers])
            for name in NOISE_COLUMNS
        }  # fmt: skip
        shown = [name for name in NOISE_COLUMNS if not np.isnan(planes[name]).all()]
        last = [NoiseRow(tensor=None if at is None else self.tensors[at], noise=_known(planes, row))
                for row, at in enumerate(numbers)]  # fmt: skip
        facts: Streamed = {
            "steps": list(steps),
            "keys": [None if number is None else keys.number(self.tensors[number].key) for number in numbers],
            "packed": list(shown),
            "offset": offset,
            "tables": tables_content([noise_table(None, last)], keys),
        }
        return facts, b"".join(packed(planes[name]) for name in shown)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContent:
    """A `RunContent` is a run as content.

    Attributes:
        facts: Its JSON.
        packed: The numbers that it refers to.
        left_out: Sentences about what is not there.
    """

    facts: Mapping[str, Streamed]
    packed: bytes
    left_out: Sequence[str]


def _fewer(what: str, shown: int, known: int, unit: str) -> Iterator[str]:
    if shown < known:
        yield f"{what} of {count(known - shown)} of {count(known)} {unit}"


def _some(recorded: np.ndarray, most: int) -> np.ndarray:
    """Returns at most so many of the recorded steps, evenly spread, the last among them."""
    if len(recorded) <= most:
        return recorded
    return recorded[np.linspace(0, len(recorded) - 1, most).round().astype(int)] if most else recorded[:0]


def _plane(series: TensorSeries, name: str, tensors: Collection[int], steps: np.ndarray) -> np.ndarray:
    """Returns a statistic of all tensors at some steps, NaN where it was not recorded."""
    plane = np.full((len(tensors), len(steps)), np.nan)
    for row, at in enumerate(tensors if len(steps) else ()):
        own = series[at]
        found = np.searchsorted(own["step"], steps).clip(max=len(own["step"]) - 1)
        plane[row] = np.where(own["step"][found] == steps, own[name][found], np.nan)
    return plane


def _octaves(histogram: ValueHistogram | None) -> Json:
    """Returns the exponent of the first octave, and the counts from there; None without elements that are not zero."""
    octaves = [] if histogram is None else histogram.octaves()
    return [octaves[0][0], *(number for _, number in octaves)] if octaves else None


def _curves(steps: Mapping[str, np.ndarray], without: str = "") -> Iterator[Json]:
    """Yields the columns of the steps that have values, without those that only count."""
    kept = np.isin(steps["step"], _some(steps["step"], _MOST_CURVE_STEPS))
    shown = [name for name in steps if name in {"loss", "learning_rate"} - {without} or "_norm" in name]
    columns: list[Json] = [
        {
            "name": name,
            "values": [None if math.isnan(value) else rounded(value) for value in steps[name][kept].tolist()],
        }
        for name in shown
        if not np.isnan(steps[name]).all()
    ]
    if columns:
        yield {"steps": steps["step"][kept].tolist(), "columns": columns}


def _about(tensor: TensorRow) -> dict[str, Json]:
    """Returns what is known of a tensor beside its numbers."""
    shape = None if tensor.shape is None else f"[{','.join(map(str, tensor.shape))}]"
    facts = {"shape": shape, "dtype": tensor.dtype, "layer": tensor.layer, "source": tensor.source}
    return {name: shortened(text) for name, text in facts.items() if text is not None}


def _largest(values: np.ndarray) -> float:
    known = values[~np.isnan(values)]
    return float(known[np.abs(known).argmax()]) if known.size else math.nan


def _known(planes: Mapping[str, np.ndarray], row: int) -> dict[str, float | int]:
    largest = {name: _largest(plane[row]) for name, plane in planes.items()}
    return {name: value for name, value in largest.items() if not math.isnan(value)}


def _families_by_group() -> dict[str, Json]:
    groups: dict[str, list[Json]] = {}
    for family, group in GROUPS.items():
        groups.setdefault(group, []).append(family)
    return {**groups, "": [INPUT, SLOT_PREFIX]}
