"""`gradscope dump`: run one batch forward and backward, write what was seen, print the table."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gradscope.cli.interrupts import Interrupts
from gradscope.cli.options import shared as options
from gradscope.cli.options.model_options import ModelOptions
from gradscope.cli.options.observation_options import OperationOptions
from gradscope.cli.options.query_options import InquiryOptions
from gradscope.cli.options.report_options import (
    FormatOptions,
    SelectionOptions,
)
from gradscope.errors import UsageError
from gradscope.naming.sizes import parse_size

if TYPE_CHECKING:
    from gradscope.capturing.dump_model import DumpRequest
    from gradscope.dump.manifest.manifest import Manifest
    from gradscope.frameworks.modules.request import Request


class CastType(StrEnum):
    """Types that narrow tensors may be stored as."""

    FLOAT32 = "float32"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How the run is made, and what is written of it."""

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
        """Say them, unless nothing is to be said."""
        from gradscope.cli.printing import say

        for sentence in () if self.quiet else sentences:
            say(sentence)


def dump(
    context: typer.Context,
    target: options.Target,
    *,
    asked: ModelOptions,
    run: RunOptions,
    chosen: SelectionOptions,
    inside: OperationOptions,
    questions: InquiryOptions,
    check: options.Check = None,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="Exit 1 if anything is missing without your word: inside a custom rule, or behind a while loop.",
            rich_help_panel="What is shown",
        ),
    ] = False,
    sort: options.Sort = None,
    no_fold: options.NoFold = False,
    written: FormatOptions,
) -> None:
    """Run one batch forward and backward, write every layer's tensors, and print their statistics.

    The model file is imported and run with your rights: only dump a model whose code you would run.
    """
    from gradscope.cli.options.checked_findings import (
        SELF_CHECK,
        checked_rules,
        trips,
        unseen_sentences,
    )
    from gradscope.cli.options.query_options import fragment_sentences
    from gradscope.cli.printing import print_report, say
    from gradscope.cli.running.jax_setup import set_up_jax
    from gradscope.naming import Selection
    from gradscope.report import Query, dump_report
    from gradscope.stats import find

    # Self-check holds the loss against itself, and in segments every one would have to be asked.
    questions.require_alone(self_check=run.self_check, max_memory=run.max_memory, per_example=inside.per_example)
    options.require_one_of(self_check=run.self_check, distributed=run.distributed)
    options.require_one_of(max_memory=run.max_memory, distributed=run.distributed)  # no process keeps all of a value
    options.require_one_of(per_example=inside.per_example, max_memory=run.max_memory)
    options.require_one_of(per_example=inside.per_example, distributed=run.distributed)
    request, rules = asked.request(target), checked_rules(check) | {SELF_CHECK}
    selection, families = chosen.selection(), chosen.family_set()
    notes = set_up_jax(asked, cache=not run.no_cache, distributed=run.distributed)
    from gradscope.capturing.dump_model import DumpRequest
    from gradscope.capturing.records.distributed import speaks_for_all
    from gradscope.capturing.records.measure import TensorReading
    from gradscope.instrument.query.capture_spec import EVERYTHING, Wanted

    wanted = Wanted(
        selection=selection, families=EVERYTHING if families is None else families, depth=chosen.depth,
        operations=inside.operations, operands=inside.operands, terms=inside.terms,
        per_example=inside.per_example,
        wrt=Selection.parse(questions.wrt) if questions.wrt else None,
    )  # fmt: skip
    dumped = DumpRequest(
        wanted=wanted, inquiry=questions.inquiry(), self_check=run.self_check, tell=run.say,
        reading=TensorReading(keep=not run.stats_only, exact_quantiles=run.exact_quantiles, widen=run.cast is not None),
    )  # fmt: skip
    run.say(*notes)
    path, manifest = _run(target, request, asked, run, dumped, context.obj)
    findings = find(manifest)
    if not speaks_for_all():
        raise typer.Exit(1 if trips(findings, rules) else 0)
    try:
        report = dump_report("dump", str(path), manifest, findings, query=Query(sort=sort), fold=not no_fold)
    except UsageError as error:  # what columns there are is known only now
        error.hint = f"the dump is in {path}, and gradscope show sorts it, too; {error.hint}"
        raise
    run.say(*fragment_sentences(manifest.provenance))
    print_report(report, written.chosen)
    unseen = manifest.ledger.unseen() if strict else ()
    for sentence in unseen_sentences(unseen):
        say(sentence)
    if unseen or trips(findings, rules):
        raise typer.Exit(1)


def _run(
    target: str, request: Request, asked: ModelOptions, run: RunOptions, dumped: DumpRequest, interrupts: Interrupts
) -> tuple[Path, Manifest]:
    """Load, run and write; returns where the dump is and what it holds."""
    from gradscope.capturing.dump_model import dump_model
    from gradscope.capturing.execution.preparation import Bounds
    from gradscope.capturing.records.distributed import dump_writer, is_shared
    from gradscope.capturing.timings import Timings
    from gradscope.cli.printing import say
    from gradscope.cli.running.progress import Progress
    from gradscope.cli.standard_streams import remarks_aside

    # What the model prints are remarks; standard output is for results.
    with remarks_aside(native=is_shared()), Progress(quiet=run.quiet) as progress:
        model = asked.model(target, request)
        path = run.output or Path(model.slug if is_shared() else f"{model.slug}.npz")
        writer = dump_writer(path, force=run.force)
        interrupts.on_interrupt(writer.discard)
        arguments = asked.arguments(model, partial=bool(dumped.inquiry))
        for choice in model.choices if run.verbose else ():
            say(choice)
        run.say(*arguments.notes)
        with writer:
            limit = run.max_memory
            bounds = None if limit is None else Bounds(memory=limit, scratch=path.absolute().parent)
            dumped = replace(dumped, facts=asked.facts(arguments), bounds=bounds)
            manifest = dump_model(model, arguments, dumped, writer, Timings(progress.phase))
    return path, manifest
