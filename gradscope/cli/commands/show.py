"""`gradscope show` prints the tables of a saved dump."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from gradscope.cli.blas import keep_single_threaded
from gradscope.cli.options import shared as options
from gradscope.cli.options.completion import tensor_keys
from gradscope.cli.options.report_options import FormatOptions, SelectionOptions

if TYPE_CHECKING:
    from gradscope.report import Report

Dump: TypeAlias = Annotated[
    Path, typer.Argument(metavar="DUMP", help="A dump, or any .npz, .npy or .safetensors file.")
]


def show(
    dump: Dump,
    *,
    tensor: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            help="One tensor in detail, with its histogram, such as activation/stem/conv.",
            autocompletion=tensor_keys,
        ),
    ] = None,
    diff: Annotated[
        Path | None,
        typer.Option(metavar="CAND", help="With --tensor: its differences in this dump, element by element."),
    ] = None,
    ledger: Annotated[bool, typer.Option("--ledger", help="Every site that is not in the dump, and why.")] = False,
    selection_options: SelectionOptions,
    check: options.Check = None,
    sort: options.Sort = None,
    no_fold: options.NoFold = False,
    full: options.Full = False,
    format_options: FormatOptions,
) -> None:
    """Print a saved dump: a verdict, findings, layers, parameters. Runs no model and needs no JAX.

    On a terminal it is an overview of one screen; --full and every other place have all rows, and so has what you
    select. 'gradscope explain NAME' says what a column, a finding or a reason is.
    """
    keep_single_threaded()
    from gradscope.cli.options.checked_findings import checked_rules, trips
    from gradscope.cli.printing import print_report
    from gradscope.dump.reader import open_dump
    from gradscope.report import LedgerReport, dump_report, tensor_report
    from gradscope.stats import find, measured

    options.require_one_of(tensor=tensor, ledger=ledger)
    if diff is not None:
        print_report(_difference(dump, diff, tensor), format_options.chosen)
        return
    rules = checked_rules(check)
    query = selection_options.query(sort)
    with open_dump(dump) as source:
        manifest = measured(source)
    findings = find(manifest)
    if tensor is not None:
        report = tensor_report(str(dump), manifest, tensor, findings)
    elif ledger:
        report = LedgerReport(path=str(dump), manifest=manifest)
    else:
        overview = not (full or no_fold or sort is not None or selection_options.is_set)
        report = dump_report("show", str(dump), manifest, findings, query=query, fold=not no_fold, overview=overview)
    print_report(report, format_options.chosen)
    if trips(findings, rules):
        raise typer.Exit(1)


def _difference(ref: Path, cand: Path, tensor: str | None) -> Report:
    from gradscope.comparison.tensor_diff import element_difference
    from gradscope.dump.reader import open_dump
    from gradscope.errors import UsageError
    from gradscope.report import DifferenceReport

    if tensor is None:
        raise UsageError("--diff applies to one tensor", hint="name it with --tensor KEY, or use 'gradscope compare'")
    with open_dump(ref) as reference, open_dump(cand) as candidate:
        difference = element_difference(reference, candidate, tensor)
    return DifferenceReport(ref=str(ref), cand=str(cand), difference=difference)
