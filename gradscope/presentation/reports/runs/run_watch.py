"""This report shows a run that goes on: its last step, loss, norms and alarms, and its layers against recent steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Final

import numpy as np

from gradscope import naming
from gradscope.dump.record import Json
from gradscope.history.history_reader import History
from gradscope.history.history_rows import Alarm, LossFault, TensorRow, known_numbers
from gradscope.history.views.learning import stated_faults
from gradscope.presentation.render.document import Document, Note, Notes, fitted
from gradscope.presentation.render.screen import BAD, Screen
from gradscope.presentation.reports.runs.alarm_words import alarm_json, alarm_sentence, worst_alarm
from gradscope.presentation.reports.runs.run_facts import fault_notes
from gradscope.presentation.reports.runs.run_report import SCHEMA
from gradscope.presentation.reports.runs.which_tensors import Which
from gradscope.presentation.tables.numbers import count, number
from gradscope.presentation.tables.over_time.repeated_names import ITERATIONS, repeated
from gradscope.presentation.tables.over_time.sparkline import sparkline
from gradscope.presentation.tables.table import Column, Line, Table

#: Recorded steps that a heat strip shows, one character each.
_RECENT: Final = 32
#: Columns of a sparkline.
_WIDTH: Final = 48
_MOST_LAYERS: Final = 40
_FEWEST_LAYERS: Final = 3
_LAST_ALARMS: Final = 3
#: The numbers of a step that are shown, and what they are called.
_NORMS: Final[Mapping[str, str]] = {
    "loss": "loss",
    "grad_norm": "gradients",
    "grad_norm_clipped": "clipped",
    "update_norm": "updates",
    "param_norm": "parameters",
    "learning_rate": "learning rate",
}
#: The noise of the gradients of all parameters together, likewise.
_NOISE: Final[Mapping[str, str]] = {"noise_scale": "noise scale", "gsnr": "gsnr"}

_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_ASCII: Final = "_.-~=+*#"
_NOT_FINITE: Final = "!"


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedLayer:
    """A `WatchedLayer` has the size of a layer's gradient, or of one parameter's, at recent steps.

    Attributes:
        tensor: The gradient.
        values: Its rms at each of the recent steps; NaN where it is missing, infinite where an element was not finite.
    """

    tensor: TensorRow
    values: tuple[float, ...]

    @property
    def last(self) -> float:
        """Its rms at the last recorded step."""
        return self.values[-1] if self.values else math.nan

    @property
    def change(self) -> float | None:
        """How many times its median over the steps before it is now; None where that is not known."""
        before = [value for value in self.values[:-1] if math.isfinite(value)]
        median = float(np.median(before)) if before else 0.0
        return self.last / median if median > 0 and not math.isnan(self.last) else None

    @property
    def badness(self) -> float:
        """How far it is from what it was, in powers of ten; infinite where it is not finite."""
        if math.isinf(self.last):
            return math.inf
        return abs(math.log10(self.change)) if self.change else 0.0

    def to_json(self) -> dict[str, Json]:
        """Returns name, family, its rms and the change; what is not known is left out."""
        facts: dict[str, Json] = {"name": self.tensor.name, "family": self.tensor.family}
        known = {"rms": self.last, "change": self.change}
        return facts | {name: each for name, each in known.items() if each is not None and not math.isnan(each)}


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchReport:
    """A `WatchReport` presents the present state of a run.

    Attributes:
        path: The run's folder, as the user named it.
        steps: What was recorded of each step, by column.
        losses: `step` and `loss` of each step whose loss is known, recorded or not.
        alarms: What was wrong.
        layers: The gradients of the layers, in the order of the step; of parameters where no layers are recorded.
        noise: The noise of the gradients of all parameters together at the steps at which it was measured, by column.
        faults: What is wrong with the program of the loss.
    """

    path: str
    steps: Mapping[str, np.ndarray]
    losses: Mapping[str, np.ndarray]
    alarms: tuple[Alarm, ...]
    layers: tuple[WatchedLayer, ...]
    noise: Mapping[str, np.ndarray]
    faults: tuple[LossFault, ...] = ()

    def document(self, screen: Screen) -> Document:
        """Returns what fits the screen: of the layers, those that changed most."""
        if screen.width is None:
            return self._document(screen, len(self.layers))
        lines = None if screen.height is None else max(screen.height - 2, 1)
        return fitted(
            partial(self._document, screen), screen, most=_MOST_LAYERS, fewest=_FEWEST_LAYERS, lines=lines
        )  # fmt: skip

    def rows(self) -> list[dict[str, Json]]:
        """Returns the layers, those that changed most first."""
        return [layer.to_json() for layer in sorted(self.layers, key=lambda each: -each.badness)]

    def to_json(self) -> dict[str, Json]:
        """Returns the numbers of the last recorded step, the alarms, and the layers."""
        last = {name: values[-1].item() for name, values in self.steps.items() if len(values)}
        noise = {name: self.noise[name][-1].item() for name in ("step", *_NOISE) if len(self.noise["step"])}
        return {
            "schema": SCHEMA,
            "command": "watch",
            "run": self.path,
            **known_numbers(last),
            **({"noise": known_numbers(noise)} if noise else {}),
            **({"faults": [fault.to_json() for fault in self.faults]} if self.faults else {}),
            "alarms": [alarm_json(alarm) for alarm in self.alarms],
            "rows": list(self.rows()),
        }

    def _document(self, screen: Screen, most: int) -> Document:
        shown = self._shown_alarms()
        some = "" if len(shown) == len(self.alarms) else f"{len(shown)} of "
        title = f"Alarms ({some}{len(self.alarms):,})"
        alarms = tuple(Note(label=each.rule, text=alarm_sentence(each), style=BAD) for each in shown)
        layers = (self._layers(screen, most),) if self.layers else ()
        return Notes(notes=tuple(self._facts(screen))), *layers, Notes(title=title, notes=alarms)

    def _shown_alarms(self) -> Sequence[Alarm]:
        """Returns the last alarms, and before them the one that the verdict on the run states."""
        worst, last = worst_alarm(self.alarms), self.alarms[-_LAST_ALARMS:]
        return last if worst is None or worst in last else (worst, *last[1:])

    def _facts(self, screen: Screen) -> Sequence[Note]:
        recorded = self.steps["step"]
        if not len(recorded):
            return [Note(label="run", text=self.path), Note(label="step", text="none was recorded yet")]
        beyond = self.losses["step"][self.losses["step"] > recorded[-1]]
        known = f"; the loss is known up to step {count(int(beyond[-1]))}" if len(beyond) else ""
        facts = {"run": self.path, "step": f"{count(int(recorded[-1]))}{_clock(self.steps['time'])}{known}"}
        room = _WIDTH if screen.width is None else max(min(_WIDTH, screen.width - 32), 8)
        for name, label in (*_NORMS.items(), *_NOISE.items()):
            values = (self.noise if name in _NOISE else self.losses if name == "loss" else self.steps)[name]
            is_clipped = name != "grad_norm_clipped" or _differ(values, self.steps["grad_norm"])
            if not np.isnan(values).all() and is_clipped:
                unknown = "unknown" if name in _NOISE else "not finite"
                text = unknown if np.isnan(values[-1]) else number(float(values[-1]))
                facts[label] = f"{text:<10}  {sparkline(values.tolist(), room, unicode=screen.unicode)}"
        return [*(Note(label=label, text=text) for label, text in facts.items()), *fault_notes(self.faults)]

    def _layers(self, screen: Screen, most: int) -> Table:
        groups = [
            (name, max((self.layers[at] for at in group), key=lambda each: each.badness))
            for name, group in repeated([each.tensor.name for each in self.layers], ITERATIONS)
        ]
        # Of those that are not finite, the gradients nearest to the loss were the first.
        worst = sorted(range(len(groups)), key=lambda at: (-groups[at][1].badness, -at))[:most]
        named = [groups[at] for at in sorted(worst)]
        kept = [layer for _, layer in named]
        finite = [value for layer in kept for value in layer.values if math.isfinite(value) and value > 0]
        ends = (math.log(min(finite)), math.log(max(finite))) if finite else (0.0, 0.0)
        lines = tuple(
            Line(
                cells=(
                    name, *_finite(layer.last, layer.change), _strip(layer.values, ends, unicode=screen.unicode)
                ),
                keys=(layer.tensor.key,),
            )
            for name, layer in named
        )  # fmt: skip
        columns = (
            Column(heading="name", kind="name"),
            Column(heading="rms", kind="number", group="gradient", priority=2),
            Column(heading="of median", kind="number", group="gradient", priority=1),
            Column(heading="", kind="text"),
        )
        shown = f"{len(kept):,} of {len(groups):,}, changed most" if len(kept) < len(groups) else len(kept)
        note = f"to the right: the last {max((len(each.values) for each in kept), default=0)} recorded steps"
        note += f", on one logarithmic scale of {number(min(finite))} to {number(max(finite))}" if finite else ""
        folded = "name[a..b]: of the iterations a to b, the one that changed most"
        notes = (note, folded) if len(groups) < len(self.layers) else (note,)
        return Table(title=f"Gradients ({shown})", columns=columns, lines=lines, notes=notes if lines else ())


def watch_report(path: str, history: History, which: Which) -> WatchReport:
    """Returns the report of what a run has recorded so far.

    Args:
        path: The run's folder, as the user named it.
        history: Its history.
        which: Which tensors.

    Raises:
        UsageError: A pattern selects nothing.
        DumpError: The history is damaged.
    """
    steps = history.steps()
    recent = steps["step"][-_RECENT:]
    if history.tensors:
        which.require_matches(history.tensors.values())
    chosen = {at: each for at, each in history.tensors.items() if which.selects(each)}
    families = {each.family for each in chosen.values()}
    family = naming.ACTIVATION_GRAD if naming.ACTIVATION_GRAD in families else naming.PARAM_GRAD
    found = history.columns(("rms", "nan", "inf"), from_step=int(recent[0]) if len(recent) else 0)
    layers = tuple(
        WatchedLayer(tensor=tensor, values=_over(recent, found[at])) for at, tensor in chosen.items()
        if tensor.family == family and at in found
    )  # fmt: skip
    return WatchReport(
        path=path, steps=steps, losses=history.losses(), alarms=history.alarms(), layers=layers,
        noise=history.noise(None), faults=stated_faults(history),
    )  # fmt: skip


def _over(steps: np.ndarray, stats: Mapping[str, np.ndarray]) -> tuple[float, ...]:
    """Returns the rms at steps; infinite where an element was not finite."""
    not_finite = (stats["nan"] > 0) | (stats["inf"] > 0)
    known = dict(zip(stats["step"].tolist(), np.where(not_finite, np.inf, stats["rms"]).tolist(), strict=True))
    return tuple(known.get(step, math.nan) for step in steps.tolist())


def _finite(last: float, change: float | None) -> tuple[float | None, float | None]:
    """Returns an rms and its change as cells: NaN where an element was not finite."""
    return (math.nan, math.nan) if math.isinf(last) else (last, change)


def _differ(some: np.ndarray, others: np.ndarray) -> bool:
    return not np.array_equal(some, others, equal_nan=True)


def _clock(times: np.ndarray) -> str:
    """Returns when the last step was written, as the clock here has it; nothing where that is not known."""
    known = times[~np.isnan(times)]
    if not known.size or not 0 <= known[-1] < datetime.max.replace(tzinfo=UTC).timestamp():
        return ""
    return f", written at {datetime.fromtimestamp(float(known[-1]), UTC).astimezone():%H:%M:%S}"


def _strip(values: Sequence[float], ends: tuple[float, float], *, unicode: bool) -> str:
    return "".join(_character(value, ends, _BLOCKS if unicode else _ASCII) for value in values)


def _character(value: float, ends: tuple[float, float], characters: str) -> str:
    if math.isinf(value):
        return _NOT_FINITE
    if math.isnan(value) or value <= 0:
        return " "
    low, high = ends
    height = (math.log(value) - low) / (high - low) if high > low else 0.5
    return characters[min(int(height * len(characters)), len(characters) - 1)]
