"""`gradscope show` prints the tables of a saved dump, or of a training run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from gradscope.cli.options import shared as options
from gradscope.cli.options.completion import tensor_keys
from gradscope.cli.options.report_options import FormatOptions, SelectionOptions
from gradscope.cli.running.blas import keep_single_threaded
from gradscope.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gradscope.presentation import Report

Dump: TypeAlias = Annotated[
    Path, typer.Argument(metavar="DUMP", help="A dump, any .npz, .npy or .safetensors file, or the folder of a run.")
]


def show(
    dump: Dump,
    *,
    tensor: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            help="One tensor in detail, with its histogram, such as activation/stem/conv; of a run also loss.",
            autocompletion=tensor_keys,
        ),
    ] = None,
    diff: Annotated[
        Path | None,
        typer.Option(metavar="CAND", help="With --tensor: its differences in this dump, element by element."),
    ] = None,
    step: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Of a run: the tables of this recorded step.")
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

    Of a training run, print the trend of each tensor, the tables of one step, or one tensor over time.
    """
    keep_single_threaded()
    from gradscope.cli.options.checked_findings import (
        checked_alarms,
        checked_rules,
        failure_sentence,
        failures,
        failures_of_run,
    )
    from gradscope.cli.printing import print_report, say
    from gradscope.cli.running.compared_paths import are_runs, target_of
    from gradscope.dump.reader import open_dump
    from gradscope.presentation import LedgerReport, dump_report, tensor_report
    from gradscope.stats import extreme_places, find, measured

    options.require_one_of(tensor=tensor, ledger=ledger, step=step)
    if are_runs([dump]):
        refused = {"--diff": diff, "--ledger": ledger, "--no-fold": no_fold}
        rules = checked_alarms(check)
        overview = not full and sort is None
        report = _of_run(dump, step, tensor, selection_options, sort, refused, rules, overview=overview)
        print_report(report, format_options.chosen)
        if found := failures_of_run(dump, None, rules):
            say(failure_sentence(found))
            raise typer.Exit(1)
        return
    if step is not None:
        raise UsageError("--step is of a training run, and this is none", hint="name the folder of a run")
    if diff is not None:
        print_report(_difference(dump, diff, tensor), format_options.chosen)
        return
    rules = checked_rules(check)
    query = selection_options.query(sort)
    with open_dump(dump, histograms=tensor is not None) as source:
        manifest = measured(source)
        places = None if tensor is None else extreme_places(source, tensor)
    del source  # what finds its tensors takes memory
    findings = find(manifest)
    if tensor is not None:
        report = tensor_report(str(dump), manifest, tensor, findings, places)
    elif ledger:
        report = LedgerReport(path=str(dump), manifest=manifest)
    else:
        overview = not (full or no_fold or sort is not None or selection_options.is_set)
        report = dump_report("show", str(dump), manifest, findings, query=query, fold=not no_fold, overview=overview,
                             checked=rules)  # fmt: skip
    print_report(report, format_options.chosen, target_of(manifest.provenance))
    if found := failures(dump, manifest, findings, rules):
        say(failure_sentence(found))
        raise typer.Exit(1)


def _of_run(
    path: Path,
    step: int | None,
    tensor: str | None,
    selection: SelectionOptions,
    sort: str | None,
    refused: Mapping[str, object],
    checked: frozenset[str],
    *,
    overview: bool,
) -> Report:
    from gradscope.cli.printing import say
    from gradscope.history.history_reader import History
    from gradscope.presentation import Which, run_tensor_report, step_report, trends_report

    wrong = [*(name for name, value in refused.items() if value), *(["--depth"] if selection.depth else [])]
    if wrong:
        raise UsageError(f"{wrong[0]} is of dumps, and {path} is a training run", hint="leave it out")
    which = Which(selection=selection.selection(), families=selection.family_set(), sort=sort)
    with History(path) as history:
        if history.files != history.folder:
            say(f"{path} has the run that a new one is to replace, which has taken no step")
        if tensor is not None:
            return run_tensor_report(str(path), history, tensor)
        if step is not None:
            overview = overview and not selection.is_set  # what is selected is shown in full
            return step_report("show", str(path), history, step, which=which, overview=overview, checked=checked)
        return trends_report(str(path), history, which=which, overview=overview, checked=checked)


def _difference(ref: Path, cand: Path, tensor: str | None) -> Report:
    from gradscope.comparison.follow_ups.tensor_diff import element_difference
    from gradscope.dump.reader import open_dump
    from gradscope.presentation import DifferenceReport

    if tensor is None:
        raise UsageError("--diff applies to one tensor", hint="name it with --tensor KEY, or use 'gradscope compare'")
    with open_dump(ref) as reference, open_dump(cand) as candidate:
        difference = element_difference(reference, candidate, tensor)
    return DifferenceReport(ref=str(ref), cand=str(cand), difference=difference)
