"""The page of training runs: curves, layers against steps, the tables of every recorded step, and how runs differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from gradscope import naming
from gradscope.comparison.diagnosis.runs.run_divergence import RunDivergence
from gradscope.comparison.diagnosis.runs.run_stages import RunRow
from gradscope.dump.manifest.manifest import Layer
from gradscope.history.history_reader import History
from gradscope.history.views.at_step import manifest_at
from gradscope.presentation.page.content.block_content import blocks_content
from gradscope.presentation.page.content.json_values import Keys, rounded
from gradscope.presentation.page.content.run_content import RecordedRun
from gradscope.presentation.page.content.streamed_json import Streamed
from gradscope.presentation.page.content.table_content import tables_content
from gradscope.presentation.page.page_parts import Page, PageMaker, PageNotes, document_parts
from gradscope.presentation.render.document import Note
from gradscope.presentation.render.screen import BAD, Screen
from gradscope.presentation.reports.comparing.compared_runs import RunDivergenceReport
from gradscope.presentation.reports.origins import origin_notes
from gradscope.presentation.reports.runs.alarm_words import alarm_sentence, worst_alarm
from gradscope.presentation.reports.runs.run_facts import clip_notes, learning_notes, loss_ends, steps_words
from gradscope.presentation.reports.runs.run_report import RunReport, trends_report
from gradscope.presentation.tables.dump_rows import Row, rows_of, value_family
from gradscope.presentation.tables.numbers import count, number
from gradscope.presentation.tables.over_time.folded_trends import TREND_ORDER, trend_order
from gradscope.presentation.tables.over_time.run_tables import trend_table
from gradscope.presentation.tables.table import Table

#: The most tensors and alarms that are read without JavaScript.
_MOST_TRENDS: Final = 40
_MOST_ALARMS: Final = 100
#: The families of values that the tree of layers has, with their gradients.
_OF_LAYERS: Final = (naming.INPUT, naming.ACTIVATION, naming.PARAM, naming.STATE, naming.AUX)
#: From this level of detail on, a page has no tree.
_NO_TREE: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRun:
    """A `ComparedRun` is a run that is compared with the reference.

    Attributes:
        path: The run's folder, as the user named it.
        history: Its history.
        divergence: Where it differs from the reference.
    """

    path: str
    history: History
    divergence: RunDivergence


def run_page(path: str, history: History, candidates: Sequence[ComparedRun] = ()) -> PageMaker:
    """Returns the maker of the page of a run, or of several that are compared.

    Args:
        path: The run's folder, as the user named it; of several, that of the reference.
        history: Its history; all that the page needs of it is read now.
        candidates: The runs that are compared with it.

    Raises:
        DumpError: A history is damaged.
    """
    named = [(path, history), *((each.path, each.history) for each in candidates)]
    runs = [RecordedRun.read(*each) for each in named]
    reports = [trends_report(*each) for each in named]
    rows, layers = _rows_at_the_end(history)
    summary = tuple(_compared_summary(candidates, reports) if candidates else _summary(reports[0]))

    def made(level: int) -> Page:
        keys = Keys()
        found = [run.content(level, keys) for run in runs]
        offsets = np.cumsum([0, *(len(each.packed) for each in found)]).tolist()

        def content() -> Iterator[tuple[str, Streamed]]:
            yield "sets", ({"name": run.name, "tables": run.tables(keys)} for run in runs)
            yield "depth", []
            yield "runs", ({**each.facts, "offset": offset} for each, offset in zip(found, offsets, strict=False))
            yield "differences", (_difference(each, keys) for each in candidates)
            if level < _NO_TREE:
                yield "blocks", blocks_content(rows, layers, _rules(reports[0]), keys)
            yield "keys", keys.to_json()

        several = len(runs) > 1
        left_out = [f"{run.name}: {text}" if several else text
                    for run, each in zip(runs, found, strict=True) for text in each.left_out]  # fmt: skip
        return Page(
            kind="run",
            title=path if not several else " and ".join(run.name for run in runs),
            summary=summary,
            content=content(),
            packed=b"".join(each.packed for each in found),
            left_out=(*left_out, *(("the tree of layers",) if level >= _NO_TREE else ())),
        )

    return made


def _rows_at_the_end(history: History) -> tuple[list[Row], list[Layer]]:
    """Returns the rows of the last recorded step, and the layers that use the parameters; none where none was."""
    recorded = history.step_numbers()
    found = rows_of(manifest_at(history, int(recorded[-1]))) if len(recorded) else ()
    rows = [row for row in found if value_family(row.family) in _OF_LAYERS]
    params: dict[str, list[str]] = {}
    for row in rows:
        if row.family == naming.PARAM and "layer" in row.facts:
            params.setdefault(str(row.facts["layer"]), []).append(row.name)
    return rows, [Layer(path=path, index=at, params=tuple(names)) for at, (path, names) in enumerate(params.items())]


def _rules(report: RunReport) -> dict[str, list[str]]:
    """Returns the rules of the alarms of each tensor."""
    found: dict[str, list[str]] = {}
    for alarm in report.alarms:
        if alarm.key is not None and alarm.rule not in found.setdefault(alarm.key, []):
            found[alarm.key].append(alarm.rule)
    return found


def _difference(candidate: ComparedRun, keys: Keys) -> Streamed:
    divergence = candidate.divergence
    others = {row.key: _counterpart(row) for row in divergence.rows if row.key and row.status != "extra"}
    return {
        "name": candidate.path,
        "steps": list(divergence.steps),
        "largest": [rounded(each) for each in divergence.largest],
        "first": divergence.first_step,
        "counterparts": {str(keys.number(key)): None if other is None else keys.number(other)
                         for key, other in others.items() if other != key},
        "tables": tables_content([RunDivergenceReport(divergence=divergence).tensors()], keys),
    }  # fmt: skip


def _counterpart(row: RunRow) -> str | None:
    """Returns the candidate's key of a tensor of the reference; None where it has none."""
    return naming.key_of(row.family, row.counterpart) if row.counterpart else None


def _summary(report: RunReport) -> Iterator[PageNotes | Table]:
    worst = worst_alarm(report.alarms)
    yield PageNotes(
        notes=[report.verdict, *origin_notes(report.origins), *_facts(report)],
        keys=[worst.key or ""] if worst else [],
        steps=[worst.step] if worst else [],
    )
    yield _alarms(report, "Alarms")
    yield changed_most(report, _MOST_TRENDS)


def _compared_summary(candidates: Sequence[ComparedRun], reports: Sequence[RunReport]) -> Iterator[PageNotes | Table]:
    """Yields the verdict on each candidate and on each run, then the first difference of each stage."""
    tables: list[Table] = []
    for candidate in candidates:
        document = RunDivergenceReport(divergence=candidate.divergence).document(Screen())
        first = candidate.divergence.first
        title = candidate.path if len(candidates) > 1 else ""
        for part in document_parts(document, [] if first is None else [first.key], title=title):
            if isinstance(part, PageNotes):
                yield part
            else:
                tables.append(replace(part, title=f"{title}: {part.title}") if title else part)
    for report in reports:
        yield PageNotes(title=report.path, notes=[report.verdict, *_facts(report)[:-1]])
        yield _alarms(report, f"Alarms of {report.path}")
    yield from tables


def _facts(report: RunReport) -> list[Note]:
    facts = [Note(label="loss", text=loss_ends(report.steps, report.losses))] if len(report.losses["step"]) else []
    facts += clip_notes(report.steps)
    facts += [Note(label="steps", text=steps_words(report.taken, report.steps, report.learning))]
    facts += [*learning_notes(report.learning), *_noise(report)]
    return [*facts, Note(label="run", text=report.path)]


def _noise(report: RunReport) -> Iterator[Note]:
    """Yields the noise scale of all parameters beside the size of a batch, where it was measured."""
    if report.noise is None:
        return
    noise = report.noise.rows[0].noise
    scale, examples = noise.get("noise_scale"), noise.get("groups", 0) * noise.get("group_size", 0)
    text = "the noise hides the mean gradient" if scale is None else f"noise scale {number(float(scale))} examples"
    batch = f"; the batch has {count(int(examples))}" if examples else ""
    yield Note(label="noise", text=f"{text} at step {report.noise.step}{batch}")


def _alarms(report: RunReport, title: str) -> PageNotes:
    shown = report.alarms[:_MOST_ALARMS]
    notes = [Note(label=each.rule, text=alarm_sentence(each), style=BAD) for each in shown]
    more = len(report.alarms) - len(shown)
    notes += [Note(label="", text=f"and {more:,} more")] if more else []
    return PageNotes(
        title=f"{title} ({len(report.alarms):,})",
        notes=notes,
        keys=[each.key or "" for each in shown],
        steps=[each.step for each in shown],
    )


def changed_most(report: RunReport, most: int) -> Table:
    """Returns the table of the trends of a run that changed most, at most so many; those of an optimizer are last."""
    table = trend_table(sorted(report.trends, key=trend_order)[:most], unicode=True, in_order=False)
    return replace(table, title=f"Trends ({len(table.lines):,} of {len(report.trends):,}, {TREND_ORDER})")
