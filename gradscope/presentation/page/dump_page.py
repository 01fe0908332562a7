"""This page shows one dump."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from gradscope import naming
from gradscope.dump.manifest.manifest import Manifest
from gradscope.dump.record import Json
from gradscope.presentation.page.content.block_content import blocks_content
from gradscope.presentation.page.content.depth_content import Measured, depth_content
from gradscope.presentation.page.content.graph_content import graph_content, sources_content
from gradscope.presentation.page.content.json_values import Keys
from gradscope.presentation.page.content.streamed_json import Streamed
from gradscope.presentation.page.content.table_content import tables_content
from gradscope.presentation.page.content.tensor_content import tensors_content
from gradscope.presentation.page.page_parts import Page, PageMaker, PageNotes
from gradscope.presentation.render.document import Note
from gradscope.presentation.render.screen import Screen
from gradscope.presentation.reports.dump_overview import verdict_note
from gradscope.presentation.reports.dump_report import DumpReport, dump_report
from gradscope.presentation.tables.dump_rows import Row
from gradscope.presentation.tables.table import Table
from gradscope.stats import Finding

#: Lines of the table of blocks that is read without JavaScript.
_OVERVIEW_LINES: Final = 40
#: The most findings that are read without JavaScript.
_MOST_FINDINGS: Final = 200
#: The most steps with a line of their own along depth.
_MOST_STEPS: Final = 8
#: The most scopes of a name at the levels of detail that leave out what is deeper.
_DEPTHS: Final = {2: 6, 3: 4, 4: 2}


def dump_page(
    path: str, manifest: Manifest, findings: Sequence[Finding], *, before: Mapping[str, Manifest] = MappingProxyType({})
) -> PageMaker:
    """Returns the maker of a dump's page.

    Args:
        path: The dump's file, as the user named it.
        manifest: Its manifest, with statistics.
        findings: The findings that `gradscope.stats.find` returned for it.
        before: The dumps of earlier steps, by name; they have lines along depth.

    Raises:
        DumpError: A statistic in the manifest is not a number.
    """
    report = dump_report("show", path, manifest, findings)

    summary = dump_summary(report)

    def made(level: int) -> Page:
        rows, left_out = fewer_rows(report.selected, level, report.rules_by_key())
        octaves = level < 1
        if not octaves:
            left_out = ("the histograms of tensors", *left_out)

        def content() -> Iterator[tuple[str, Streamed]]:
            keys = Keys()
            yield "sets", iter([{"name": path, "tables": _tables(report, rows, keys)}])
            yield "depth", _depth(path, manifest, before, keys)
            yield "blocks", blocks_content(rows, manifest.layers, report.rules_by_key(), keys)
            tensors = tensors_content(rows, manifest, keys, octaves=octaves)
            yield "sides", iter([{"name": path, "tensors": tensors}])
            yield "graph", graph_content(manifest, rows, keys)
            yield "sources", sources_content(manifest)
            yield "keys", keys.to_json()

        return Page(
            kind="dump",
            title=path or "dump",
            summary=summary,
            content=content(),
            left_out=left_out,
        )

    return made


def _tables(report: DumpReport, rows: Sequence[Row], keys: Keys) -> Iterator[Streamed]:
    # A generator, so that the tables are gone where they are written: one takes megabytes.
    yield from tables_content(replace(report, selected=rows).tables(Screen()), keys)


def _depth(path: str, manifest: Manifest, before: Mapping[str, Manifest], keys: Keys) -> list[Json]:
    """Returns one chart of a dump, or of several steps one for each direction."""
    last = Measured(name=path if not before else "last", manifest=manifest)
    if not before:
        return [depth_content("Activations and gradients along depth", [last], keys)]
    names = list(before)
    every = -(-len(names) // (_MOST_STEPS - 1))
    steps = [Measured(name=name, manifest=before[name]) for name in names[::every]]
    return [
        depth_content(title, [last, *steps], keys, (family,))
        for family, title in (
            (naming.ACTIVATION, "Activation rms along depth, by step"),
            (naming.ACTIVATION_GRAD, "Gradient rms along depth, by step"),
        )
    ]


def dump_summary(report: DumpReport) -> tuple[PageNotes | Table, ...]:
    """Returns what of a dump is read without JavaScript: verdict, findings, facts, and the table of blocks.

    Args:
        report: The report of the dump.
    """
    overview = report.overview_facts()
    keys = [naming.key_of(each.family, each.name) for each in report.findings]
    facts = [Note(label=label, text=text) for label, text in overview.facts.items()]
    more = max(len(keys) - _MOST_FINDINGS, 0)
    others = [*overview.findings[:_MOST_FINDINGS], *([Note(label="", text=f"and {more:,} more")] if more else [])]
    verdict = [verdict_note(overview.findings, overview.facts), *overview.origins]
    return (
        PageNotes(notes=verdict, keys=keys[:1]),
        PageNotes(title=f"Findings ({len(keys):,})", notes=others, keys=keys[:_MOST_FINDINGS]),
        overview.overview.table(_OVERVIEW_LINES),
        PageNotes(title="The run", notes=facts),
    )


def fewer_rows(rows: Sequence[Row], level: int, kept: Collection[str]) -> tuple[tuple[Row, ...], tuple[str, ...]]:
    """Returns the rows that a level of detail has, and sentences about the others.

    Args:
        rows: The rows of a dump.
        level: The level of detail.
        kept: Keys that every level has.
    """
    deepest = _DEPTHS.get(level)
    if deepest is None:
        return tuple(rows), ()
    found = tuple(row for row in rows if row.name.count("/") < deepest or row.key in kept)
    return found, (f"{len(rows) - len(found):,} of {len(rows):,} tensors, of names with more than {deepest} parts",)
