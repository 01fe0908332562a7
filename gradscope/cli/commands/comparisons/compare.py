"""`gradscope compare` judges whether two dumps are the same, and reports where they first differ."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict

import typer

from gradscope.cli.options import shared as options
from gradscope.cli.options.judge_options import JudgeOptions
from gradscope.cli.options.report_options import ComparisonFormat, ComparisonFormatOptions, NameOptions
from gradscope.cli.running.blas import keep_single_threaded

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gradscope.comparison import CompareOptions, Comparison
    from gradscope.comparison.diagnosis.runs.run_divergence import RunDivergence
    from gradscope.comparison.follow_ups.isolation import Isolation
    from gradscope.comparison.result import Series
    from gradscope.presentation import Report


def compare(
    ref: Annotated[Path, typer.Argument(metavar="REF", help="The reference: a dump, a folder of steps, or a run.")],
    cand: Annotated[
        list[Path],
        typer.Argument(metavar="CAND...", help="What is judged: a dump, several dumps, a folder of steps, or a run."),
    ],
    *,
    judge_options: JudgeOptions,
    write_map: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Save the pairs that were found as rules for --map.",
            rich_help_panel="What is compared with what",
        ),
    ] = None,
    name_options: NameOptions,
    everything: Annotated[
        bool, typer.Option("--all", help="Also show the rows that are the same.", rich_help_panel="What is shown")
    ] = False,
    worst_first: Annotated[
        bool, typer.Option("--worst-first", help="Sort by rel_l2, largest first.", rich_help_panel="What is shown")
    ] = False,
    isolate: Annotated[
        str | None,
        typer.Option(
            metavar="TARGET",
            help="The candidate's model: run its layers one by one on the reference's inputs and cotangents, and "
            "report which add error themselves. Imports and runs the model file.",
            rich_help_panel="Which layer it is",
        ),
    ] = None,
    full: options.Full = False,
    format_options: ComparisonFormatOptions,
    quiet: options.Quiet = False,
    verbose: Annotated[
        bool,
        typer.Option("--verbose", "-v", help="Show the hashes in which the runs differ.", rich_help_panel="Output"),
    ] = False,
) -> None:
    """Match dumps tensor by tensor and judge them. Without --isolate it runs no model and needs no JAX.

    Of two training runs, print the first step that differs, and the first tensor in it, as far as statistics tell.

    Exit status: 0 the same within tolerance, 1 different, 2 nothing could be compared.
    """
    if isolate is None:
        keep_single_threaded()
    from gradscope.cli.printing import print_report
    from gradscope.cli.running.compared_paths import are_runs
    from gradscope.comparison.result import EXIT_CODES

    compare_options = judge_options.options(name_options.selection())
    if are_runs([ref, *cand]):
        of_dumps = {**judge_options.of_dumps, "--isolate": isolate, "--write-map": write_map}
        refused = {**of_dumps, "--worst-first": worst_first or None}
        divergence = _divergence(ref, cand, compare_options, refused)
        print_report(_run_report(divergence, everything=everything, verbose=verbose), format_options.chosen)
        if divergence.verdict != "same":
            raise typer.Exit(EXIT_CODES[divergence.verdict])
        return
    if write_map is not None:
        from gradscope.dump.storage.writing.target_path import checked_file

        checked_file(write_map, force=None)  # before the work
    found = _compared(ref, cand, compare_options)
    if write_map is not None:
        _save_map(write_map, found)
    shown = _Shown(
        everything=everything,
        worst_first=worst_first,
        overview=not (full or everything or worst_first or name_options.select or name_options.exclude),
        verbose=verbose,
    )
    report, status = _report(found, shown, "" if isolate else _to_isolate(found)), found.exit_code
    if isolate is not None:
        single, isolation = _single(found), _isolated(ref, cand[0], isolate, compare_options, quiet=quiet)
        report, status = _isolation_report(single, isolation, everything), status or isolation.exit_code
    annotates = format_options.chosen is ComparisonFormat.GITHUB
    print_report(report, format_options.chosen, isolate or (_target(found) if annotates else ""))
    if status:
        raise typer.Exit(status)


def _divergence(
    ref: Path, cand: list[Path], compare_options: CompareOptions, refused: Mapping[str, object]
) -> RunDivergence:
    from gradscope.cli.running.compared_paths import refuse_for_runs
    from gradscope.comparison.diagnosis.runs.run_divergence import compare_runs
    from gradscope.errors import UsageError
    from gradscope.history.history_reader import History

    refuse_for_runs(refused)
    if len(cand) > 1:
        raise UsageError("a training run is compared with one other", hint="name two runs")
    with History(ref) as reference, History(cand[0]) as candidate:
        return compare_runs(reference, candidate, compare_options)


def _run_report(found: RunDivergence, *, everything: bool, verbose: bool) -> Report:
    from gradscope.presentation import RunDivergenceReport

    return RunDivergenceReport(divergence=found, everything=everything, verbose=verbose)


def _compared(ref: Path, cands: list[Path], compare_options: CompareOptions) -> Comparison | Series:
    """Returns one comparison, or a series of several candidates or of the steps in two folders."""
    from gradscope.cli.running.compared_paths import compared_paths

    paths = compared_paths(ref, cands)
    if not paths.series:
        return _one(ref, cands[0], compare_options)
    return paths.series_of(
        {name: _one(one, other, compare_options) for name, one, other in paths.members}, compare_options
    )


def _one(ref: Path, cand: Path, compare_options: CompareOptions) -> Comparison:
    from gradscope.comparison import compare as compared
    from gradscope.dump.reader import open_dump

    with open_dump(ref, histograms=False) as reference, open_dump(cand, histograms=False) as candidate:
        return compared(reference, candidate, options=compare_options)


def _single(found: Comparison | Series) -> Comparison:
    """Returns the comparison of two dumps to which `--isolate` applies."""
    from gradscope.comparison import Comparison
    from gradscope.errors import UsageError

    if not isinstance(found, Comparison):
        raise UsageError("--isolate applies to one reference and one candidate", hint="name two dumps, not a series")
    return found


def _isolated(ref: Path, cand: Path, target: str, compare_options: CompareOptions, *, quiet: bool) -> Isolation:
    """Runs the candidate's model layer by layer, with the options of its dump."""
    from gradscope.cli.running.rerun import options_of, rerun_model
    from gradscope.cli.running.terminal.progress import Progress
    from gradscope.cli.standard_streams import stdout_to_stderr
    from gradscope.comparison.pairing.matching import Dumps
    from gradscope.dump.reader import open_dump

    with (
        open_dump(ref) as reference,
        open_dump(cand) as candidate,
        stdout_to_stderr(),
        Progress(quiet=quiet) as progress,
    ):
        model = rerun_model(target, options_of(cand, candidate.manifest.provenance))
        from gradscope.capturing.isolate.isolate import isolate
        from gradscope.capturing.timings import Timings

        return isolate(model, Dumps(ref=reference, cand=candidate), compare_options, Timings(progress.phase))


def _isolation_report(found: Comparison, isolation: Isolation, everything: bool) -> Report:
    from gradscope.presentation import IsolationReport

    return IsolationReport(comparison=found, isolation=isolation, everything=everything)


class _Shown(TypedDict):
    """`_Shown` states what of a comparison is printed."""

    everything: bool
    worst_first: bool
    overview: bool
    verbose: bool


def _to_isolate(found: Comparison | Series) -> str:
    """Returns the candidate's target where running its layers by themselves tells more; "" where it does not."""
    from gradscope.comparison import Comparison

    if not isinstance(found, Comparison) or not found.has_layer_values or found.first_divergence.forward is None:
        return ""
    return _target(found)


def _target(found: Comparison | Series) -> str:
    """Returns the target of the one candidate, whose source lines the report has; "" where it is not known."""
    from gradscope.cli.running.compared_paths import target_here
    from gradscope.comparison import Comparison

    return target_here(found.program) if isinstance(found, Comparison) and found.program is not None else ""


def _report(found: Comparison | Series, shown: _Shown, target: str) -> Report:
    from gradscope.comparison import Comparison
    from gradscope.presentation import ComparisonReport, SeriesReport

    if isinstance(found, Comparison):
        return ComparisonReport(comparison=found, target=target, **shown)
    return SeriesReport(series=found, **shown)


def _save_map(path: Path, found: Comparison | Series) -> None:
    from gradscope.comparison import Comparison
    from gradscope.comparison.pairing.map_file import write_map

    members = (found,) if isinstance(found, Comparison) else (member.comparison for member in found.members)
    write_map(path, dict.fromkeys(match for comparison in members for match in comparison.matches))
