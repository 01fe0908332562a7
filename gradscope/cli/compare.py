"""`gradscope compare`: are two dumps the same, and where do they part?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gradscope.cli import options
from gradscope.cli.options import Format

if TYPE_CHECKING:
    from gradscope.compare import Rule

_HOW = "How strictly"
_PAIRED = "What is compared with what"


def compare(
    ref: Annotated[Path, typer.Argument(metavar="REF", help="The reference dump.")],
    cand: Annotated[Path, typer.Argument(metavar="CAND", help="The dump that is judged by it.")],
    tol: Annotated[
        list[str],
        typer.Option(
            metavar="[REGEX=]EXPR",
            help="A limit on rel_l2, or 'rel_l2 < 1e-4 and max_abs < 1'; the first whose REGEX matches. Repeatable.",
            rich_help_panel=_HOW,
        ),
    ] = [],  # noqa: B006 - typer reads the default and never changes it
    tol_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="More of them, one on each line, after those of --tol.", rich_help_panel=_HOW
        ),
    ] = None,
    rtol: Annotated[
        float | None,
        typer.Option(
            min=0.0, help="Judge as numpy.allclose does, with this relative tolerance (1e-5).", rich_help_panel=_HOW
        ),
    ] = None,
    atol: Annotated[
        float | None,
        typer.Option(min=0.0, help="The same, with this absolute tolerance (1e-8).", rich_help_panel=_HOW),
    ] = None,
    bitwise: Annotated[
        bool, typer.Option("--bitwise", help="Only equal bytes are the same.", rich_help_panel=_HOW)
    ] = False,
    allow_missing: Annotated[
        list[str],
        typer.Option(
            metavar="REGEX", help="Names on one side only that do not count. Repeatable.", rich_help_panel=_HOW
        ),
    ] = [],  # noqa: B006
    map_file: Annotated[
        Path | None,
        typer.Option(
            "--map",
            metavar="FILE",
            help="Rules in TOML that say what the candidate's tensors are in the reference.",
            rich_help_panel=_PAIRED,
        ),
    ] = None,
    write_map: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Save the pairs that were found as such rules, for --map.", rich_help_panel=_PAIRED
        ),
    ] = None,
    select: options.Select = [],  # noqa: B006
    exclude: options.Exclude = [],  # noqa: B006
    everything: Annotated[
        bool, typer.Option("--all", help="Show the rows that are the same, too.", rich_help_panel="What is shown")
    ] = False,
    worst_first: Annotated[
        bool, typer.Option("--worst-first", help="Largest rel_l2 first.", rich_help_panel="What is shown")
    ] = False,
    output_format: options.OutputFormat = Format.TABLE,
    json: options.Json = False,
    traceback: options.Traceback = False,  # noqa: ARG001 - the error boundary reads it
) -> None:
    """Match two dumps tensor by tensor and judge them. Runs no model and needs no JAX.

    Exit status: 0 the same within tolerance, 1 different, 2 nothing could be compared.
    """
    from gradscope.cli.printing import print_report
    from gradscope.compare import CompareOptions, read_map
    from gradscope.compare import compare as compared
    from gradscope.compare import write_map as save_map
    from gradscope.dump.reader import open_dump
    from gradscope.naming import Selection
    from gradscope.report import ComparisonReport

    asked = CompareOptions(
        selection=Selection.parse(select, exclude), map_rules=() if map_file is None else read_map(map_file),
        allow_missing=tuple(allow_missing), rules=_rules(tol, tol_file),
        bitwise=bitwise, rtol=rtol, atol=atol,
    )  # fmt: skip
    with open_dump(ref) as reference, open_dump(cand) as candidate:
        comparison = compared(reference, candidate, options=asked)
    if write_map is not None:
        save_map(write_map, comparison.matches)
    report = ComparisonReport(comparison=comparison, everything=everything, worst_first=worst_first)
    print_report(report, options.chosen_format(output_format, json=json))
    if comparison.exit_code:
        raise typer.Exit(comparison.exit_code)


def _rules(spellings: list[str], path: Path | None) -> tuple[Rule, ...]:
    """The rules of `--tol` and of the file, in the order in which they count."""
    from gradscope.compare import Rule, read_rules
    from gradscope.errors import UsageError

    try:
        rules = tuple(map(Rule.parse, spellings))
    except UsageError as error:
        raise UsageError(f"invalid value for '--tol': {error.message}", hint=error.hint) from error
    return rules if path is None else (*rules, *read_rules(path))
