"""`gradscope report` writes a page for a browser."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gradscope.cli.options import shared as options
from gradscope.cli.options.judge_options import JudgeOptions
from gradscope.cli.options.report_options import NameOptions
from gradscope.cli.running.blas import keep_single_threaded

if TYPE_CHECKING:
    from gradscope.comparison import CompareOptions
    from gradscope.dump.manifest.manifest import Manifest
    from gradscope.presentation import PageMaker


def report(
    what: Annotated[
        list[Path],
        typer.Argument(
            metavar="WHAT...",
            help="A dump, the folder of a run or of dumps by step, or several to compare: the reference first.",
        ),
    ],
    *,
    judge_options: JudgeOptions,
    name_options: NameOptions,
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

    The page is one file that requests nothing, of a dump, a comparison, a series, a training run or several. The
    options that say what is compared, and how strictly, are those of `compare`.
    """
    keep_single_threaded()
    from gradscope.cli.printing import print_line
    from gradscope.dump.storage.writing.atomic_file import write_parts
    from gradscope.dump.storage.writing.target_path import PAGE, checked_target, files_of
    from gradscope.presentation import html_parts

    kept = files_of((*what, *judge_options.input_files))
    target = checked_target(output, force=force, inputs=kept, kind=PAGE)
    parts = html_parts(_page(what, judge_options, name_options))
    size_bytes = write_parts(target, (part.encode() for part in parts), replace=force)
    print_line(f"{output}: {size_bytes:,} bytes")
    if open_page:
        typer.launch(target.as_uri())


def _page(what: list[Path], judge_options: JudgeOptions, name_options: NameOptions) -> PageMaker:
    from gradscope.cli.running.compared_paths import are_runs, refuse_for_runs
    from gradscope.dump.reader import dumps_in
    from gradscope.errors import UsageError

    compare_options = judge_options.options(name_options.selection())
    runs = are_runs(what)
    if len(what) == 1:
        specified = [*judge_options.specified, *name_options.specified]
        if specified:
            raise UsageError(f"{specified[0]} is of comparisons, and {what[0]} is alone", hint="leave it out")
        if runs:
            return _run_page(what, compare_options)
        steps = dumps_in(what[0])
        return _dump_page(steps or {str(what[0]): what[0]}, str(what[0]))
    if runs:
        refuse_for_runs(judge_options.of_dumps)
        return _run_page(what, compare_options)
    return _comparison_page(what[0], what[1:], compare_options)


def _run_page(paths: list[Path], compare_options: CompareOptions) -> PageMaker:
    from contextlib import ExitStack

    from gradscope.comparison.diagnosis.runs.run_divergence import compare_runs
    from gradscope.history.history_reader import History
    from gradscope.presentation import ComparedRun, run_page

    with ExitStack() as stack:
        ref, *cands = [stack.enter_context(History(path)) for path in paths]
        compared = [
            ComparedRun(path=str(path), history=cand, divergence=compare_runs(ref, cand, compare_options))
            for path, cand in zip(paths[1:], cands, strict=True)
        ]
        return run_page(str(paths[0]), ref, compared)


def _dump_page(dumps: dict[str, Path], path: str) -> PageMaker:
    from gradscope.dump.reader import open_dump
    from gradscope.errors import UsageError
    from gradscope.presentation import dump_page
    from gradscope.stats import find, measured

    manifests: dict[str, Manifest] = {}
    for name, each in dumps.items():
        with open_dump(each) as source:
            manifests[name] = measured(source)
    *before, (last_name, last) = manifests.items()
    for name, manifest in before:
        if not _are_of_one_model(manifest, last):
            raise UsageError(
                f"{dumps[name]} and {dumps[last_name]} are dumps of different models, and no steps of one",
                hint=f"name one of them: {dumps[last_name]}",
            )
    return dump_page(path, last, find(last), before=dict(before))


def _are_of_one_model(one: Manifest, other: Manifest) -> bool:
    """Returns whether most tensors of the dump that has fewer are in the other; a step may have a part of them."""
    fewer, more = sorted(
        (frozenset((entry.family, entry.name) for entry in each.entries) for each in (one, other)), key=len
    )
    return 2 * len(fewer & more) >= len(fewer)


def _comparison_page(ref: Path, cands: list[Path], compare_options: CompareOptions) -> PageMaker:
    from gradscope.cli.running.compared_paths import compared_paths
    from gradscope.comparison import compare
    from gradscope.dump.reader import open_dump
    from gradscope.errors import UsageError
    from gradscope.presentation import Compared, comparison_page
    from gradscope.stats import measured

    paths = compared_paths(ref, cands)
    if not paths.members:
        raise UsageError(f"{ref} and {cands[0]} have no step of one name", hint="name two dumps")
    found: list[Compared] = []
    for name, one, other in paths.members:
        with open_dump(one) as reference, open_dump(other) as candidate:
            comparison = compare(reference, candidate, options=compare_options)
            found.append(Compared(name=name, comparison=comparison, ref=measured(reference), cand=measured(candidate)))
    series = paths.series_of({each.name: each.comparison for each in found}, compare_options)
    return comparison_page(str(ref), series, found)
