"""`gradscope compare` judges whether two dumps are the same, and reports where they first differ."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict

import typer

from gradscope.cli.blas import keep_single_threaded
from gradscope.cli.options import shared as options
from gradscope.cli.options.report_options import FormatOptions, NameOptions

if TYPE_CHECKING:
    from gradscope.comparison import CompareOptions, Comparison, MapRule, ToleranceRule
    from gradscope.comparison.isolation import Isolation
    from gradscope.comparison.result import Series
    from gradscope.naming import Selection
    from gradscope.report import Report

_JUDGING = "How strictly"
_PAIRING = "What is compared with what"


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeOptions:
    """`JudgeOptions` state which tensors are compared with each other, and how strictly."""

    tol: Annotated[
        list[str],
        typer.Option(
            metavar="[REGEX=]EXPR",
            help="A limit on rel_l2, or 'rel_l2 < 1e-4 and max_abs < 1'; the first whose REGEX matches counts. "
            "Repeatable.",
            rich_help_panel=_JUDGING,
        ),
    ] = field(default_factory=list[str])
    tol_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Further rules, one on each line, that follow those of --tol.",
            rich_help_panel=_JUDGING,
        ),
    ] = None
    rtol: Annotated[
        float | None,
        typer.Option(
            min=0.0, help="Judge as numpy.allclose does, with this relative tolerance (1e-5).", rich_help_panel=_JUDGING
        ),
    ] = None
    atol: Annotated[
        float | None,
        typer.Option(
            min=0.0, help="Judge as numpy.allclose does, with this absolute tolerance (1e-8).", rich_help_panel=_JUDGING
        ),
    ] = None
    cand_dtype: Annotated[
        str | None,
        typer.Option(
            "--as",
            metavar="DTYPE",
            help="Judge the candidate as computed in this dtype, bfloat16 or float16, where its dump does not show it.",
            rich_help_panel=_JUDGING,
        ),
    ] = None
    bitwise: Annotated[
        bool, typer.Option("--bitwise", help="Only equal bytes are the same.", rich_help_panel=_JUDGING)
    ] = False
    allow_missing: Annotated[
        list[str],
        typer.Option(
            metavar="REGEX", help="Names on one side only that do not count. Repeatable.", rich_help_panel=_JUDGING
        ),
    ] = field(default_factory=list[str])
    map_file: Annotated[
        Path | None,
        typer.Option(
            "--map",
            metavar="FILE",
            help="Rules in TOML that map the candidate's tensors to the reference's.",
            rich_help_panel=_PAIRING,
        ),
    ] = None
    write_map: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Save the pairs that were found as rules for --map.", rich_help_panel=_PAIRING
        ),
    ] = None

    def options(self, selection: Selection) -> CompareOptions:
        """Returns these options for a comparison of some names.

        Args:
            selection: The names.

        Returns:
            The options of the comparison.

        Raises:
            UsageError: A rule is not of its form.
            DumpError: A file of rules cannot be read.
        """
        from gradscope.comparison import CompareOptions

        return CompareOptions(
            selection=selection,
            map_rules=() if self.map_file is None else _map_rules(self.map_file),
            allow_missing=tuple(self.allow_missing),
            rules=_rules(self.tol, self.tol_file),
            bitwise=self.bitwise,
            cand_dtype=self.cand_dtype,
            rtol=self.rtol,
            atol=self.atol,
        )


def compare(
    ref: Annotated[Path, typer.Argument(metavar="REF", help="The reference: a dump, or a folder of steps.")],
    cand: Annotated[
        list[Path],
        typer.Argument(metavar="CAND...", help="What is judged: a dump, several dumps, or a folder of steps."),
    ],
    *,
    judge_options: JudgeOptions,
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
    format_options: FormatOptions,
    verbose: Annotated[
        bool,
        typer.Option("--verbose", "-v", help="Show the hashes in which the runs differ.", rich_help_panel="Output"),
    ] = False,
) -> None:
    """Match dumps tensor by tensor and judge them. Without --isolate it runs no model and needs no JAX.

    Exit status: 0 the same within tolerance, 1 different, 2 nothing could be compared.
    """
    if isolate is None:
        keep_single_threaded()
    from gradscope.cli.printing import print_report

    compare_options = judge_options.options(name_options.selection())
    if judge_options.write_map is not None:
        from gradscope.dump.storage.target_path import checked_file

        checked_file(judge_options.write_map, force=False)  # before the work
    found = _compared(ref, cand, compare_options)
    if judge_options.write_map is not None:
        _save_map(judge_options.write_map, found)
    shown = _Shown(
        everything=everything,
        worst_first=worst_first,
        overview=not (full or everything or worst_first or name_options.select or name_options.exclude),
        verbose=verbose,
    )
    report, status = _report(found, shown), found.exit_code
    if isolate is not None:
        single, isolation = _single(found), _isolated(ref, cand[0], isolate, compare_options)
        report, status = _isolation_report(single, isolation, everything), status or isolation.exit_code
    print_report(report, format_options.chosen)
    if status:
        raise typer.Exit(status)


def _compared(ref: Path, cands: list[Path], compare_options: CompareOptions) -> Comparison | Series:
    """Returns one comparison, or a series of several candidates or of the steps in two folders."""
    from gradscope.dump.reader import dumps_in

    if len(cands) > 1:
        from gradscope.comparison.result import Series, SeriesMember

        return Series(
            members=tuple(SeriesMember(name=str(cand), comparison=_one(ref, cand, compare_options)) for cand in cands)
        )
    ref_steps, cand_steps = dumps_in(ref), dumps_in(cands[0])
    if not ref_steps or not cand_steps:
        return _one(ref, cands[0], compare_options)
    from gradscope.comparison.result import Series, SeriesMember

    return Series(
        members=tuple(
            SeriesMember(name=name, comparison=_one(path, cand_steps[name], compare_options))
            for name, path in ref_steps.items()
            if name in cand_steps
        ),
        steps=True,
        missing=tuple(
            name for name in ref_steps if name not in cand_steps and not compare_options.may_be_missing(name)
        ),
        extra=tuple(name for name in cand_steps if name not in ref_steps and not compare_options.may_be_missing(name)),
    )


def _one(ref: Path, cand: Path, compare_options: CompareOptions) -> Comparison:
    from gradscope.comparison import compare as compared
    from gradscope.dump.reader import open_dump

    with open_dump(ref) as reference, open_dump(cand) as candidate:
        return compared(reference, candidate, options=compare_options)


def _single(found: Comparison | Series) -> Comparison:
    """Returns the comparison of two dumps to which `--isolate` applies."""
    from gradscope.comparison import Comparison
    from gradscope.errors import UsageError

    if not isinstance(found, Comparison):
        raise UsageError("--isolate applies to one reference and one candidate", hint="name two dumps, not a series")
    return found


def _isolated(ref: Path, cand: Path, target: str, compare_options: CompareOptions) -> Isolation:
    """Runs the candidate's model layer by layer, with the options of its dump."""
    from gradscope.cli.running.progress import Progress
    from gradscope.cli.running.rerun import options_of, rerun_model
    from gradscope.cli.standard_streams import stdout_to_stderr
    from gradscope.comparison.pairing.matching import Dumps
    from gradscope.dump.reader import open_dump

    with (
        open_dump(ref) as reference,
        open_dump(cand) as candidate,
        stdout_to_stderr(),
        Progress(quiet=False) as progress,
    ):
        model = rerun_model(target, options_of(cand, candidate.manifest.provenance))
        from gradscope.capturing.isolate.isolate import isolate
        from gradscope.capturing.timings import Timings

        return isolate(model, Dumps(ref=reference, cand=candidate), compare_options, Timings(progress.phase))


def _isolation_report(found: Comparison, isolation: Isolation, everything: bool) -> Report:
    from gradscope.report import IsolationReport

    return IsolationReport(comparison=found, isolation=isolation, everything=everything)


class _Shown(TypedDict):
    """What of a comparison is shown."""

    everything: bool
    worst_first: bool
    overview: bool
    verbose: bool


def _report(found: Comparison | Series, shown: _Shown) -> Report:
    from gradscope.comparison import Comparison
    from gradscope.report import ComparisonReport, SeriesReport

    if isinstance(found, Comparison):
        return ComparisonReport(comparison=found, **shown)
    return SeriesReport(series=found, **shown)


def _map_rules(path: Path) -> tuple[MapRule, ...]:
    from gradscope.comparison.pairing.map_file import read_map

    return read_map(path)


def _save_map(path: Path, found: Comparison | Series) -> None:
    from gradscope.comparison import Comparison
    from gradscope.comparison.pairing.map_file import write_map

    members = (found,) if isinstance(found, Comparison) else (member.comparison for member in found.members)
    write_map(path, dict.fromkeys(match for comparison in members for match in comparison.matches))


def _rules(spellings: list[str], path: Path | None) -> tuple[ToleranceRule, ...]:
    """Returns the rules of `--tol` and of the file, in the order in which they count."""
    from gradscope.comparison import ToleranceRule, read_rules
    from gradscope.errors import UsageError

    try:
        rules = tuple(map(ToleranceRule.parse, spellings))
    except UsageError as error:
        raise UsageError(f"invalid value for '--tol': {error.message}", hint=error.hint) from error
    return rules if path is None else (*rules, *read_rules(path))
