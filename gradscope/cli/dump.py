"""`gradscope dump`: run one batch forward and backward, write what was seen, print the table."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gradscope.cli import options
from gradscope.cli.interrupts import Interrupts
from gradscope.cli.options import Format

if TYPE_CHECKING:
    from gradscope.dump.manifest import Manifest
    from gradscope.instrument.planning import Wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    """What the command line asks of the run itself."""

    target: str
    output: Path | None
    seed: int
    batch_size: int | None
    data: Path | None
    dtype: str | None
    self_check: bool
    stats_only: bool
    exact_quantiles: bool
    widen: bool
    force: bool
    quiet: bool
    verbose: bool


def dump(
    context: typer.Context,
    target: options.Target,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE.npz", help="Where to write; by default NAME.npz here."),
    ] = None,
    seed: options.Seed = 0,
    batch_size: options.BatchSize = None,
    data: options.Data = None,
    dtype: options.Dtype = None,
    x64: options.X64 = False,
    matmul_precision: options.MatmulPrecision = None,
    self_check: options.SelfCheck = False,
    no_cache: options.NoCache = False,
    select: options.Select = [],  # noqa: B006 - typer reads the default and never changes it
    exclude: options.Exclude = [],  # noqa: B006
    depth: options.Depth = None,
    ops: options.Operations = False,
    families: options.Families = None,
    stats_only: options.StatsOnly = False,
    exact_quantiles: options.ExactQuantiles = False,
    cast: options.Cast = None,
    check: options.Check = None,
    strict: options.Strict = False,
    sort: options.Sort = None,
    no_fold: options.NoFold = False,
    force: options.Force = False,
    output_format: options.OutputFormat = Format.TABLE,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    traceback: options.Traceback = False,  # noqa: ARG001 - the error boundary reads it
) -> None:
    """Run one batch forward and backward, write every layer's tensors, and print their statistics.

    The model file is imported and run with your rights: only dump a model whose code you would run.
    """
    from gradscope.cli.findings import SELF_CHECK, checked_rules, trips, unseen_sentences
    from gradscope.cli.jaxsetup import set_up_jax
    from gradscope.cli.printing import print_report
    from gradscope.naming import Selection
    from gradscope.report import Query, dump_report
    from gradscope.stats import find
    from gradscope.tracing.target import parse_target

    options.require_one_of(batch_size=batch_size, data=data)
    parse_target(target)  # a target of the wrong form is told before JAX is imported
    rules = checked_rules(check) | {SELF_CHECK}
    selection, chosen = Selection.parse(select, exclude), options.family_set(families)
    notes = set_up_jax(x64=x64, dtype=dtype, matmul_precision=matmul_precision, cache=not no_cache)
    asked = _Options(
        target=target, output=output, seed=seed, batch_size=batch_size, data=data,
        dtype=None if dtype is None else dtype.value, self_check=self_check, stats_only=stats_only,
        exact_quantiles=exact_quantiles, widen=cast is not None, force=force, quiet=quiet, verbose=verbose,
    )  # fmt: skip
    from gradscope.instrument.planning import EVERYTHING, Wanted

    wanted = Wanted(selection=selection, families=EVERYTHING if chosen is None else chosen, depth=depth, operations=ops)
    _tell(() if quiet else notes)
    path, manifest = _run(asked, wanted, context.obj)
    findings = find(manifest)
    report = dump_report("dump", str(path), manifest, findings, query=Query(sort=sort), fold=not no_fold)
    print_report(report, options.chosen_format(output_format, json=json))
    unseen = manifest.ledger.unseen() if strict else ()
    _tell(tuple(unseen_sentences(unseen)))
    if unseen or trips(findings, rules):
        raise typer.Exit(1)


def _run(asked: _Options, wanted: Wanted, interrupts: Interrupts) -> tuple[Path, Manifest]:
    """Load, run and write; returns where the dump is and what it holds."""
    from gradscope.capture.measured import TensorReading
    from gradscope.capture.one_shot import DumpRequest, dump_model
    from gradscope.capture.preparation import model_arguments
    from gradscope.capture.timings import Timings
    from gradscope.cli.progress import Progress
    from gradscope.dump.writer import DumpWriter
    from gradscope.tracing.loader import load_model

    # What the model prints are remarks; standard output is for results.
    with redirect_stdout(sys.stderr), Progress(quiet=asked.quiet) as progress:
        model = load_model(asked.target)
        path = asked.output or Path(f"{model.slug}.npz")
        writer = DumpWriter(path, force=asked.force)
        interrupts.on_interrupt(writer.discard)
        arguments = model_arguments(
            model, seed=asked.seed, batch_size=asked.batch_size, dtype=asked.dtype, data=asked.data
        )
        _tell((*(model.choices if asked.verbose else ()), *(() if asked.quiet else arguments.notes)))
        request = DumpRequest(
            wanted=wanted,
            reading=TensorReading(keep=not asked.stats_only, exact_quantiles=asked.exact_quantiles, widen=asked.widen),
            self_check=asked.self_check,
            facts={"seed": asked.seed, "batch_size": arguments.batch_size},
        )
        with writer:
            manifest = dump_model(model, arguments, request, writer, Timings(progress.phase))
    return path, manifest


def _tell(sentences: tuple[str, ...]) -> None:
    from gradscope.cli.printing import say

    for sentence in sentences:
        say(sentence)
