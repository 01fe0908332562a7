"""`gradscope compare`: are two dumps the same, and where do they part?"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gradscope.cli.blas import keep_single_threaded
from gradscope.cli.options.report_options import FormatOptions, NameOptions

if TYPE_CHECKING:
    from gradscope.comparison import CompareOptions, Comparison, MapRule, ToleranceRule
    from gradscope.comparison.isolation import Isolation
    from gradscope.comparison.result import Series
    from gradscope.naming import Selection
    from gradscope.report import Report

_HOW = "How strictly"
_PAIRED = "What is compared with what"


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeOptions:
    """What is compared with what, and how strictly."""

    tol: Annotated[
        list[str],
        typer.Option(
            metavar="[REGEX=]EXPR",
            help="A limit on rel_l2, or 'rel_l2 < 1e-4 and max_abs < 1'; the first whose REGEX matches. Repeatable.",
            rich_help_panel=_HOW,
        ),
    ] = field(default_factory=list[str])
    tol_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="More of them, one on each line, after those of --tol.", rich_help_panel=_HOW
        ),
    ] = None
    rtol: Annotated[
        float | None,
        typer.Option(
            min=0.0, help="Judge as numpy.allclose does, with this relative tolerance (1e-5).", rich_help_panel=_HOW
        ),
    ] = None
    atol: Annotated[
        float | None,
        typer.Option(min=0.0, help="The same, with this absolute tolerance (1e-8).", rich_help_panel=_HOW),
    ] = None
    bitwise: Annotated[bool, typer.Option("--bitwise", help="Only equal bytes are the same.", rich_help_panel=_HOW)] = (
        False
    )
    allow_missing: Annotated[
        list[str],
        typer.Option(
            metavar="REGEX", help="Names on one side only that do not count. Repeatable.", rich_help_panel=_HOW
        ),
    ] = field(default_factory=list[str])
    map_file: Annotated[
        Path | None,
        typer.Option(
            "--map",
            metavar="FILE",
            help="Rules in TOML that say what the candidate's tensors are in the reference.",
            rich_help_panel=_PAIRED,
        ),
    ] = None
    write_map: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Save the pairs that were found as such rules, for --map.", rich_help_panel=_PAIRED
        ),
    ] = None

    def options(self, selection: Selection) -> CompareOptions:
        """The same for a comparison of some names.

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
            rtol=self.rtol,
            atol=self.atol,
        )


def compare(
    ref: Annotated[Path, typer.Argument(metavar="REF", help="The reference: a dump, or a folder of steps.")],
    cand: Annotated[
        list[Path],
        typer.Argument(metavar="CAND...", help="What is judged by it: a dump, several, or a folder of steps."),
    ],
    *,
    how: JudgeOptions,
    names: NameOptions,
    everything: Annotated[
        bool, typer.Option("--all", help="Show the rows that are the same, too.", rich_help_panel="What is shown")
    ] = False,
    worst_first: Annotated[
        bool, typer.Option("--worst-first", help="Largest rel_l2 first.", rich_help_panel="What is shown")
    ] = False,
    isolate: Annotated[
        str | None,
        typer.Option(
            metavar="TARGET",
            help="The candidate's model: run its layers one by one on the reference's inputs and cotangents, and say "
            "which make error themselves. Imports and runs the model file.",
            rich_help_panel="Which layer it is",
        ),
    ] = None,
    written: FormatOptions,
) -> None:
    """Match dumps tensor by tensor and judge them. Runs no model and needs no JAX, --isolate aside.

    Exit status: 0 the same within tolerance, 1 different, 2 nothing could be compared.
    """
    if isolate is None:
        keep_single_threaded()
    from gradscope.cli.printing import print_report

    asked = how.options(names.selection())
    found = _compared(ref, cand, asked)
    if how.write_map is not None:
        _save_map(how.write_map, found)
    report, status = _report(found, everything, worst_first), found.exit_code
    if isolate is not None:
        single, alone = _single(found), _isolated(ref, cand[0], isolate, asked)
        report, status = _isolation_report(single, alone, everything), status or alone.exit_code
    print_report(report, written.chosen)
    if status:
        raise typer.Exit(status)


def _compared(ref: Path, cands: list[Path], asked: CompareOptions) -> Comparison | Series:
    """One comparison; a series of several candidates, or of the steps in two folders."""
    from gradscope.dump.reader import dumps_in

    if len(cands) > 1:
        from gradscope.comparison.result import Series, SeriesMember

        return Series(members=tuple(SeriesMember(name=str(cand), comparison=_one(ref, cand, asked)) for cand in cands))
    ref_steps, cand_steps = dumps_in(ref), dumps_in(cands[0])
    if not ref_steps or not cand_steps:
        return _one(ref, cands[0], asked)
    from gradscope.comparison.result import Series, SeriesMember

    return Series(
        members=tuple(
            SeriesMember(name=name, comparison=_one(path, cand_steps[name], asked))
            for name, path in ref_steps.items()
            if name in cand_steps
        ),
        steps=True,
        missing=tuple(name for name in ref_steps if name not in cand_steps and not asked.may_be_missing(name)),
        extra=tuple(name for name in cand_steps if name not in ref_steps and not asked.may_be_missing(name)),
    )


def _one(ref: Path, cand: Path, asked: CompareOptions) -> Comparison:
    from gradscope.comparison import compare as compared
    from gradscope.dump.reader import open_dump

    with open_dump(ref) as reference, open_dump(cand) as candidate:
        return compared(reference, candidate, options=asked)


def _single(found: Comparison | Series) -> Comparison:
    """The comparison of two dumps that `--isolate` is about."""
    from gradscope.comparison import Comparison
    from gradscope.errors import UsageError

    if not isinstance(found, Comparison):
        raise UsageError("--isolate is about one reference and one candidate", hint="give it two dumps, not a series")
    return found


def _isolated(ref: Path, cand: Path, target: str, asked: CompareOptions) -> Isolation:
    """Run the candidate's model layer by layer, as its dump says that it was run."""
    from gradscope.cli.running.progress import Progress
    from gradscope.cli.running.rerun import options_of, rerun_model
    from gradscope.cli.standard_streams import remarks_aside
    from gradscope.comparison.pairing.matching import Dumps
    from gradscope.dump.reader import open_dump

    with open_dump(ref) as reference, open_dump(cand) as candidate, remarks_aside(), Progress(quiet=False) as progress:
        model = rerun_model(target, options_of(cand, candidate.manifest.provenance))
        from gradscope.capturing.isolate.isolate import isolate
        from gradscope.capturing.timings import Timings

        return isolate(model, Dumps(ref=reference, cand=candidate), asked, Timings(progress.phase))


def _isolation_report(found: Comparison, alone: Isolation, everything: bool) -> Report:
    from gradscope.report import IsolationReport

    return IsolationReport(comparison=found, isolation=alone, everything=everything)


def _report(found: Comparison | Series, everything: bool, worst_first: bool) -> Report:
    from gradscope.comparison import Comparison
    from gradscope.report import ComparisonReport, SeriesReport

    if isinstance(found, Comparison):
        return ComparisonReport(comparison=found, everything=everything, worst_first=worst_first)
    return SeriesReport(series=found, everything=everything, worst_first=worst_first)


def _map_rules(path: Path) -> tuple[MapRule, ...]:
    from gradscope.comparison.pairing.map_file import read_map

    return read_map(path)


def _save_map(path: Path, found: Comparison | Series) -> None:
    from gradscope.comparison import Comparison
    from gradscope.comparison.pairing.map_file import write_map

    members = (found,) if isinstance(found, Comparison) else (member.comparison for member in found.members)
    write_map(path, dict.fromkeys(match for comparison in members for match in comparison.matches))


def _rules(spellings: list[str], path: Path | None) -> tuple[ToleranceRule, ...]:
    """The rules of `--tol` and of the file, in the order in which they count."""
    from gradscope.comparison import ToleranceRule, read_rules
    from gradscope.errors import UsageError

    try:
        rules = tuple(map(ToleranceRule.parse, spellings))
    except UsageError as error:
        raise UsageError(f"invalid value for '--tol': {error.message}", hint=error.hint) from error
    return rules if path is None else (*rules, *read_rules(path))
