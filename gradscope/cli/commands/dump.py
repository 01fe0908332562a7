"""`gradscope dump` runs one batch forward and backward, writes what was observed, and prints the table."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from gradscope.cli.options import shared as options
from gradscope.cli.options.fetch_and_feed_options import QUERY_OPTIONS, QueryOptions
from gradscope.cli.options.model_options import ModelOptions
from gradscope.cli.options.observation_options import OperationOptions
from gradscope.cli.options.report_options import FormatOptions, SelectionOptions
from gradscope.errors import UsageError
from gradscope.naming.sizes import parse_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gradscope.capturing.dump_model import DumpRequest
    from gradscope.dump.manifest.manifest import Manifest
    from gradscope.frameworks.modules.request import Request
    from gradscope.instrument.query.capture_spec import CaptureSpec
    from gradscope.stats import Finding

#: Options that cannot be combined with others: each option, and the options that it excludes.
_EXCLUDED: Final = {
    # It compares the gradients with those of the user's own loss, which only one process computes.
    "self_check": (*QUERY_OPTIONS, "distributed"),
    # In segments, every segment would need the query. Of several processes, none has all of a value to put on disk.
    "max_memory": (*QUERY_OPTIONS, "distributed"),
    # The gradients of single examples are those of the user's own loss, too, and they are computed in one process.
    "per_example": (*QUERY_OPTIONS, "max_memory", "distributed"),
}


class CastType(StrEnum):
    """A `CastType` is a wider type in which narrow tensors may be stored."""

    FLOAT32 = "float32"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """`RunOptions` state how the model runs, and what is written."""

    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE.npz", help="Where to write; by default NAME.npz here."),
    ] = None
    distributed: Annotated[
        str | None,
        typer.Option(
            metavar="WHERE",
            help="Run as one of several processes, each started so: auto, or HOST:PORT,COUNT,INDEX. "
            "The dump is a folder then.",
            rich_help_panel="Model",
        ),
    ] = None
    self_check: Annotated[
        bool,
        typer.Option(
            "--self-check",
            help="Run the plain program too, and say how far observing it changed the gradients.",
            rich_help_panel="Model",
        ),
    ] = False
    no_origin: Annotated[
        bool,
        typer.Option(
            "--no-origin",
            help="Do not run the model again to find where a NaN began, or why a gradient is zero.",
            rich_help_panel="Model",
        ),
    ] = False
    no_cache: options.NoCache = False
    stats_only: Annotated[
        bool, typer.Option("--stats-only", help="Write statistics and no tensors.", rich_help_panel="Output")
    ] = False
    exact_quantiles: Annotated[
        bool,
        typer.Option(
            "--exact-quantiles",
            help="Quantiles from the sorted values, not from the histogram.",
            rich_help_panel="Output",
        ),
    ] = False
    cast: Annotated[
        CastType | None,
        typer.Option(
            help="Store bfloat16 and float8 tensors as this, for readers that lack them.", rich_help_panel="Output"
        ),
    ] = None
    max_memory: Annotated[
        int | None,
        typer.Option(
            parser=parse_size,
            metavar="SIZE",
            help="Run in segments that take no more memory than this, 4GiB or 500MB, where the whole would.",
            rich_help_panel="Output",
        ),
    ] = None
    force: options.Force = False
    quiet: options.Quiet = False
    verbose: options.Verbose = False

    def say(self, *sentences: str) -> None:
        """Prints messages on standard error, unless `--quiet` is set."""
        from gradscope.cli.printing import say

        for sentence in () if self.quiet else sentences:
            say(sentence)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultOptions:
    """`ResultOptions` state which rows are printed, and which results make the command exit 1."""

    check: options.Check = None
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="Exit 1 if something you did not exclude is missing: inside a custom rule, or behind a while loop.",
            rich_help_panel="What is shown",
        ),
    ] = False
    sort: options.Sort = None
    no_fold: options.NoFold = False
    full: options.Full = False

    @property
    def asks_for_rows(self) -> bool:
        """True where an option asks for rows and not for an overview."""
        return self.full or self.no_fold or self.sort is not None

    def failing_rules(self) -> frozenset[str]:
        """Returns the rules whose findings make the command exit 1.

        Raises:
            UsageError: `--check` names no such rule.
        """
        from gradscope.cli.options.checked_findings import SELF_CHECK, checked_rules

        return checked_rules(self.check) | {SELF_CHECK}


def dump(
    target: options.Target,
    *,
    model_options: ModelOptions,
    run_options: RunOptions,
    selection_options: SelectionOptions,
    operation_options: OperationOptions,
    query_options: QueryOptions,
    result_options: ResultOptions,
    format_options: FormatOptions,
) -> None:
    """Run one batch forward and backward, write every layer's tensors, and print their statistics.

        gradscope dump mlp                             # it comes with gradscope
        gradscope dump model.py --batch-size 16 --self-check
        gradscope dump package.module:Net --input 'float32[8,784]' --loss mse
        gradscope dump model.py --data batch.npz --checkpoint weights.npz
        gradscope dump model.py --check nonfinite --format github     # for CI

    On a terminal it prints an overview of one screen; --full and every other place have all rows. 'gradscope explain
    NAME' says what a column, a finding or a reason is. Without --output, it replaces a dump of the same target.

    The model file is imported and run with your rights: only dump a model whose code you would run.
    """
    from gradscope.cli.options.checked_findings import failure_sentence, failures
    from gradscope.cli.printing import say
    from gradscope.cli.running.starting_jax.jax_setup import set_up_jax
    from gradscope.stats import find

    # Reported before JAX is imported, which takes half a second.
    options.require_compatible(_EXCLUDED, run_options, operation_options, query_options)
    model_request, failing_rules = model_options.request(target), result_options.failing_rules()
    selection, families = selection_options.selection(), selection_options.family_set()
    programs_of = (target, "dump", selection_options, operation_options, query_options, run_options.max_memory)
    notes = set_up_jax(model_options, programs_of, cache=not run_options.no_cache, distributed=run_options.distributed)
    from gradscope.capturing.records.distributed import speaks_for_all
    from gradscope.instrument.query.capture_spec import EVERYTHING, CaptureSpec

    spec = CaptureSpec(
        selection=selection, families=EVERYTHING if families is None else families, depth=selection_options.depth,
        operations=operation_options.operations, operands=operation_options.operands, terms=operation_options.terms,
        per_example=operation_options.per_example, wrt=query_options.wrt_selection(),
    )  # fmt: skip
    request = _dump_request(spec, run_options, query_options, source=operation_options.source)
    run_options.say(*notes)
    kept = query_options.input_files
    path, manifest = _run(target, model_request, model_options, run_options, request, kept)
    found, incomplete = failures(path, manifest, findings := find(manifest), failing_rules), False
    if speaks_for_all():
        _print_results(target, path, manifest, findings, run_options, selection_options, result_options, format_options)
        if found:
            say(failure_sentence(found))
        incomplete = result_options.strict and bool(manifest.ledger.unseen())
    if found or incomplete:
        raise typer.Exit(1)


def _dump_request(
    spec: CaptureSpec, run_options: RunOptions, query_options: QueryOptions, *, source: bool
) -> DumpRequest:
    from gradscope.capturing.dump_model import DumpRequest
    from gradscope.capturing.records.measure import TensorReading
    from gradscope.cli.printing import import_report

    keep, exact = not run_options.stats_only, run_options.exact_quantiles
    return DumpRequest(
        spec=spec,
        query=query_options.trace_query(),
        self_check=run_options.self_check,
        explain=not run_options.no_origin,
        source=source,
        notify=run_options.say,
        reading=TensorReading(keep=keep, exact_quantiles=exact, widen=run_options.cast is not None),
        meanwhile=import_report,
    )


def _run(
    target: str,
    model_request: Request,
    model_options: ModelOptions,
    run_options: RunOptions,
    request: DumpRequest,
    kept: Sequence[Path],
) -> tuple[Path, Manifest]:
    """Loads the model, runs it and writes the dump, over none of `kept`; returns its path and its manifest."""
    from gradscope.capturing.dump_model import dump_model
    from gradscope.capturing.execution.preparation import Bounds
    from gradscope.capturing.records.distributed import dump_writer, is_shared
    from gradscope.capturing.timings import Timings
    from gradscope.cli.running.default_output import replaces_own_dump
    from gradscope.cli.running.terminal.progress import Progress
    from gradscope.cli.standard_streams import stdout_to_stderr
    from gradscope.dump.manifest.provenance import without_folder
    from gradscope.dump.storage.writing.read_files import reads_remembered

    # A relative path is one of the folder at the start, whatever the model does to it.
    named, start = without_folder(target), Path.cwd()
    # What the model prints are messages; standard output is for results.
    with stdout_to_stderr(), Progress(quiet=run_options.quiet) as progress:
        with reads_remembered(anew=True):
            model = model_options.model(target, model_request)
        usual = Path(model.slug if is_shared() else f"{model.slug}.npz")
        path = run_options.output or usual
        with options.working_in(start):
            is_usual = os.path.realpath(path) == os.path.realpath(usual)  # named or not, or a link to itself
            own = is_usual and not run_options.force and replaces_own_dump(path, named)
            writer = dump_writer(path, force=run_options.force or own, inputs=(*kept, *model_options.input_files))
        with reads_remembered():
            arguments = model_options.arguments(model, partial=bool(request.query))
        run_options.say(*(model.choices if run_options.verbose else ()), *arguments.notes)
        with writer, reads_remembered():
            limit = run_options.max_memory
            bounds = None if limit is None else Bounds(memory=limit, scratch=(start / path).parent)
            request = replace(request, facts={"target": named, **model_options.facts(arguments)}, bounds=bounds)
            manifest = dump_model(model, arguments, request, writer, Timings(progress.phase))
    return path, manifest


def _print_results(
    target: str,
    path: Path,
    manifest: Manifest,
    findings: Sequence[Finding],
    run_options: RunOptions,
    selection_options: SelectionOptions,
    result_options: ResultOptions,
    format_options: FormatOptions,
) -> None:
    """Prints the table of a dump, and on standard error what `--strict` found missing."""
    from gradscope.cli.options.checked_findings import unseen_sentences
    from gradscope.cli.options.fetch_and_feed_options import pruned_sentences
    from gradscope.cli.printing import print_report, say
    from gradscope.presentation import Query, dump_report

    unseen = tuple(unseen_sentences(manifest.ledger.unseen() if result_options.strict else ()))
    try:
        report = dump_report(
            "dump", str(path), manifest, findings, query=Query(sort=result_options.sort),
            overview=not (result_options.asks_for_rows or selection_options.is_set),
            fold=not result_options.no_fold, checked=result_options.failing_rules(), missing=unseen,
        )  # fmt: skip
    except UsageError as error:  # the columns are known only now
        hint = f"the dump is in {path}, and gradscope show sorts it, too; {error.hint}"
        raise UsageError(error.message, hint=hint) from error
    run_options.say(*pruned_sentences(manifest.provenance))
    print_report(report, format_options.chosen, target)
    for sentence in unseen:
        say(sentence)
