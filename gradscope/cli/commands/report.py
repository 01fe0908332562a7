"""`gradscope report` writes a page for a browser."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gradscope.cli.blas import keep_single_threaded
from gradscope.cli.options import shared as options

if TYPE_CHECKING:
    from gradscope.report import PageMaker


def report(
    what: Annotated[
        list[Path],
        typer.Argument(
            metavar="WHAT...",
            help="A dump, the folder of a run or of dumps by step, or several to compare: the reference first.",
        ),
    ],
    *,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FILE.html", help="The file for the page.", rich_help_panel="Output"),
    ] = Path("report.html"),
    open_page: Annotated[
        bool, typer.Option("--open", help="Show it in the browser.", rich_help_panel="Output")
    ] = False,
    force: options.Force = False,
) -> None:
    """Write one page for a browser: charts, tables, and every tensor. Runs no model and needs no JAX.

    The page is one file that requests nothing, of a dump, a comparison, a series or a training run.
    """
    keep_single_threaded()
    from gradscope.cli.printing import print_line
    from gradscope.dump.storage.target_path import checked_target
    from gradscope.dump.storage.whole_file import write_whole
    from gradscope.report import page_html

    target = checked_target(output, force=force)
    page = page_html(_page(what)).encode()
    write_whole(target, page, replace=force)
    print_line(f"{output}: {len(page):,} bytes")
    if open_page:
        typer.launch(target.as_uri())


def _page(what: list[Path]) -> PageMaker:
    from gradscope.dump.reader import dumps_in
    from gradscope.errors import UsageError
    from gradscope.history.run_folder import is_run

    if len(what) == 1 and is_run(what[0]):
        return _run_page(what[0])
    runs = [path for path in what if is_run(path)]
    if runs:
        raise UsageError(f"{runs[0]} is a training run, and a page has one run alone", hint="name one of them")
    if len(what) > 1:
        return _comparison_page(what[0], what[1:])
    steps = dumps_in(what[0])
    return _dump_page(steps or {str(what[0]): what[0]}, str(what[0]))


def _run_page(path: Path) -> PageMaker:
    from gradscope.history.history_reader import History
    from gradscope.report import run_page

    with History(path) as history:
        return run_page(str(path), history)


def _dump_page(dumps: dict[str, Path], path: str) -> PageMaker:
    from gradscope.dump.reader import open_dump
    from gradscope.report import dump_page
    from gradscope.stats import find, measured

    manifests = {}
    for name, each in dumps.items():
        with open_dump(each) as source:
            manifests[name] = measured(source)
    *before, (_, last) = manifests.items()
    return dump_page(path, last, find(last), before=dict(before))


def _comparison_page(ref: Path, cands: list[Path]) -> PageMaker:
    from gradscope.cli.running.compared_paths import compared_paths
    from gradscope.comparison import CompareOptions, compare
    from gradscope.comparison.result import Series, SeriesMember
    from gradscope.dump.reader import open_dump
    from gradscope.errors import UsageError
    from gradscope.report import Compared, comparison_page
    from gradscope.stats import measured

    paths = compared_paths(ref, cands)
    if not paths.members:
        raise UsageError(f"{ref} and {cands[0]} have no step of one name", hint="name two dumps")
    found: list[Compared] = []
    for name, one, other in paths.members:
        with open_dump(one) as reference, open_dump(other) as candidate:
            comparison = compare(reference, candidate, options=CompareOptions())
            found.append(Compared(name=name, comparison=comparison, ref=measured(reference), cand=measured(candidate)))
    members = tuple(SeriesMember(name=each.name, comparison=each.comparison) for each in found)
    series = Series(members=members, steps=paths.steps, missing=paths.missing, extra=paths.extra)
    return comparison_page(str(ref), series, found)
