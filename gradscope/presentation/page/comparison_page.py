"""This page shows a comparison: of two dumps, of several candidates with one reference, or of two runs' steps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

from gradscope import naming
from gradscope.comparison import Comparison, ComparisonRow
from gradscope.comparison.result import Series
from gradscope.dump.manifest.json_text import as_float
from gradscope.dump.manifest.manifest import Manifest
from gradscope.dump.record import Json
from gradscope.presentation.page.content.block_content import blocks_content
from gradscope.presentation.page.content.depth_content import DIRECTIONS, Measured, depth_content, innermost
from gradscope.presentation.page.content.graph_content import graph_content, sources_content
from gradscope.presentation.page.content.json_values import Keys, rounded, shortened
from gradscope.presentation.page.content.streamed_json import Streamed
from gradscope.presentation.page.content.table_content import tables_content
from gradscope.presentation.page.content.tensor_content import tensors_content
from gradscope.presentation.page.dump_page import fewer_rows
from gradscope.presentation.page.page_parts import Page, PageMaker, PageNotes, document_parts
from gradscope.presentation.render.screen import Screen
from gradscope.presentation.reports.comparing.comparison import ComparisonReport
from gradscope.presentation.reports.comparing.series import SeriesReport
from gradscope.presentation.tables.dump_rows import rows_of
from gradscope.presentation.tables.table import Table

#: The most rows of a table that is read without JavaScript.
_MOST_ROWS: Final = 12
#: By level of detail, the most candidates whose statistics are on the page.
_SIDES: Final = (8, 8, 4, 2, 1, 0)
#: Values whose error is shown along depth, by direction.
_SHOWN: Final = {"forward": (naming.ACTIVATION, naming.TENSOR), "backward": (naming.ACTIVATION_GRAD,)}
_FIRST: Final = {"forward": "first divergence forward", "backward": "first divergence backward"}
#: The column that says whether a row is the same.
_STATUS: Final = "status"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A `Compared` is one comparison with its two dumps.

    Attributes:
        name: The candidate's file, or the step.
        comparison: The comparison.
        ref: The reference's manifest, with statistics.
        cand: The candidate's.
    """

    name: str
    comparison: Comparison
    ref: Manifest
    cand: Manifest


def comparison_page(ref: str, series: Series, compared: Sequence[Compared]) -> PageMaker:
    """Returns the maker of the page of one or several comparisons.

    Args:
        ref: The reference, as the user named it.
        series: The comparisons as a series.
        compared: The same comparisons with their dumps, at least one.

    Raises:
        DumpError: A statistic in a manifest is not a number.
    """
    first = next((each for each in compared if not each.comparison), compared[-1])
    # The steps of two runs have a reference each; the page shows the dumps of the first that differs.
    shown = [first] if series.steps else list(compared)
    all_rows = rows_of(first.ref)

    def made(level: int) -> Page:
        statuses = _statuses(first.comparison)
        rows, left_out = fewer_rows(all_rows, level, statuses)
        octaves = level < 1
        left_out = left_out if octaves else ("the histograms of tensors", *left_out)
        sides = shown[: _SIDES[level]]
        if len(sides) < len(shown):
            left_out = (f"the statistics of {len(shown) - len(sides):,} of {len(shown):,} candidates", *left_out)
        dumps = [Measured(name=ref, manifest=first.ref), *(_measured(each) for each in sides)]

        def content() -> Iterator[tuple[str, Streamed]]:
            keys = Keys()
            yield "sets", ({"name": each.name, "tables": tables_content(_tables(each), keys)} for each in compared)
            yield "depth", chain(_errors(compared, keys, with_tolerance=len(compared) == 1), _values(dumps, keys))
            yield "blocks", blocks_content(rows, first.ref.layers, statuses, keys, _needed(first.comparison))
            own = {"name": ref, "tensors": tensors_content(rows, first.ref, keys, octaves=octaves)}
            yield "sides", chain([own], (_side(each, keys, level, octaves=octaves) for each in sides))
            yield "graph", graph_content(first.ref, rows, keys)
            yield "sources", sources_content(first.ref)
            yield "keys", keys.to_json()

        return Page(
            kind="comparison",
            title=f"{ref} and {compared[0].name if len(compared) == 1 else f'{len(compared):,} others'}",
            summary=tuple(_summary(series, first)),
            content=content(),
            left_out=left_out,
        )

    return made


def _statuses(comparison: Comparison) -> dict[str, list[str]]:
    return {_key(row): [row.status] for row in comparison.rows if row.status != "same" and row.counts}


def _needed(comparison: Comparison) -> dict[str, float]:
    return {_key(row): row.needed for row in comparison.rows if row.needed is not None}


def _key(row: ComparisonRow) -> str:
    return naming.key_of(row.family, row.name)


def _counterparts(comparison: Comparison) -> dict[str, str]:
    """Returns the candidate's key of each tensor that has another one there."""
    found: dict[str, str] = {}
    for row in comparison.rows:
        if row.counterpart and not row.made_by and row.status != "extra":
            is_key = row.counterpart.partition("/")[0] in naming.FAMILIES
            found[_key(row)] = row.counterpart if is_key else naming.key_of(row.family, row.counterpart)
    return found


def _made(comparison: Comparison) -> dict[str, float | None]:
    """Returns how many times the reference's norm what is made of tensors of the candidate has; None if not known."""
    ratios = {_key(row): row.metrics.get("norm_ratio") for row in comparison.rows if row.made_by}
    return {key: as_float(ratio) if isinstance(ratio, int | float) else None for key, ratio in ratios.items()}


def _measured(compared: Compared) -> Measured:
    return Measured(
        name=compared.name, manifest=compared.cand, counterparts=_counterparts(compared.comparison),
        made=_made(compared.comparison),
    )  # fmt: skip


def _tables(compared: Compared) -> Iterator[Table]:
    for table in ComparisonReport(comparison=compared.comparison, everything=True).tables():
        yield table.with_common_in_title(_STATUS)


def _side(compared: Compared, keys: Keys, level: int, *, octaves: bool) -> Streamed:
    rows, _ = fewer_rows(rows_of(compared.cand), level, ())
    others: dict[str, Json] = {key: keys.number(each) for key, each in _counterparts(compared.comparison).items()}
    # No tensor of the candidate has the statistics of one that is made of several, or of a part of one.
    others |= dict.fromkeys(_made(compared.comparison))
    return {
        "name": compared.name,
        "tensors": tensors_content(rows, compared.cand, keys, octaves=octaves),
        "counterparts": {str(keys.number(key)): other for key, other in others.items()},
    }


def _errors(compared: Sequence[Compared], keys: Keys, *, with_tolerance: bool) -> Iterator[Json]:
    """Yields the errors along depth, a chart for each direction and a line for each comparison."""
    return (_error(direction, compared, keys, with_tolerance=with_tolerance) for direction in _SHOWN)


def _error(direction: str, compared: Sequence[Compared], keys: Keys, *, with_tolerance: bool) -> Json:
    found = [{_key(row): row for row in _in_order(each.comparison, _SHOWN[direction])} for each in compared]
    longest = max(found, key=len)
    kept = set(innermost(row.name for row in longest.values()))
    order = {key: at for at, key in enumerate(key for key, row in longest.items() if row.name in kept)}
    numbers: list[Json] = [keys.number(key) for key in order]
    lines: list[Json] = [
        {"label": _error_label(each, compared), "direction": direction, "keys": numbers,
         "values": [_rounded(rows[key].needed) if key in rows else None for key in order]}
        for each, rows in zip(compared, found, strict=True)
    ]  # fmt: skip
    if with_tolerance:
        tolerances: list[Json] = [_rounded(longest[key].tolerance) for key in order]
        lines.append({"label": "tolerance", "direction": direction, "keys": numbers, "values": tolerances})
    return {
        "title": f"Error along depth, {direction}",
        "unit": "rel_l2",
        "names": [shortened(longest[key].name) for key in order],
        "lines": lines,
        "marks": list(_marks(direction, compared, [longest[key] for key in order], keys)),
    }


def _error_label(each: Compared, compared: Sequence[Compared]) -> str:
    return "rel_l2" if len(compared) == 1 else each.name


def _rounded(value: float | None) -> Json:
    return None if value is None or not math.isfinite(value) else rounded(value)


def _in_order(comparison: Comparison, families: Sequence[str]) -> list[ComparisonRow]:
    return sorted((row for row in comparison.rows if row.family in families and row.compared), key=_index)


def _index(row: ComparisonRow) -> int:
    return row.index


def _marks(direction: str, compared: Sequence[Compared], along: Sequence[ComparisonRow], keys: Keys) -> Iterator[Json]:
    """Yields where each comparison first differs, of a module around layers beside the layers inside it.

    Args:
        direction: `forward` or `backward`.
        compared: The comparisons.
        along: The rows along the axis, without those of modules around others.
        keys: The numbers of keys.
    """
    at = {_key(row): number for number, row in enumerate(along)}
    for each in compared if along else ():
        divergence = each.comparison.first_divergence
        row = divergence.forward if direction == "forward" else divergence.backward
        if row is not None:
            before = sum(other.index <= row.index for other in along)
            beside = min(before, len(along) - 1) if direction == "forward" else max(before - 1, 0)
            of = "" if len(compared) == 1 else f" of {each.name}"
            yield {
                "at": at.get(_key(row), beside),
                "text": f"{_FIRST[direction]}{of}: {row.name}",
                "key": keys.number(_key(row)),
            }


def _values(dumps: Sequence[Measured], keys: Keys) -> Iterator[Json]:
    titles = {naming.ACTIVATION: "Activation rms along depth", naming.ACTIVATION_GRAD: "Gradient rms along depth"}
    return (depth_content(titles[family], dumps, keys, (family,)) for family in DIRECTIONS)


def _summary(series: Series, first: Compared) -> Iterator[PageNotes | Table]:
    divergence = first.comparison.first_divergence
    row = divergence.forward or divergence.backward
    keys = [] if row is None else [_key(row)]
    shortened = ComparisonReport(comparison=first.comparison).shortened(Screen(), _MOST_ROWS)
    details = [part.with_common_in_title(_STATUS) if isinstance(part, Table) else part for part in shortened]
    if len(series.members) == 1 and not series.steps:
        yield from document_parts(details, keys)
        return
    yield from document_parts(SeriesReport(series=series).heading(), keys)
    if not first.comparison:
        yield from document_parts(details, keys)
