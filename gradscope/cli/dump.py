"""`gradscope dump`: run one batch forward and backward, write what was seen, print the table."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gradscope.cli import options
from gradscope.cli.interrupts import Interrupts
from gradscope.cli.options import Format
from gradscope.cli.sources import BatchIndex, Checkpoint, Data, MapKeys, Sources

if TYPE_CHECKING:
    from gradscope.dump.manifest import Manifest
    from gradscope.frameworks.request import Request
    from gradscope.instrument.inquiry import Inquiry
    from gradscope.instrument.planning import Wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    """What the command line asks of the run itself."""

    target: str
    request: Request
    output: Path | None
    seed: int
    sources: Sources
    dtype: str | None
    self_check: bool
    stats_only: bool
    exact_quantiles: bool
    widen: bool
    max_memory: int | None
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
    data: Data = None,
    batch_index: BatchIndex = None,
    checkpoint: Checkpoint = None,
    map_keys: MapKeys = None,
    inputs: options.Input = [],  # noqa: B006 - typer reads the default and never changes it
    loss: options.LossOf = None,
    train: options.Train = None,
    dtype: options.Dtype = None,
    x64: options.X64 = False,
    matmul_precision: options.MatmulPrecision = None,
    distributed: options.Distributed = None,
    self_check: options.SelfCheck = False,
    no_cache: options.NoCache = False,
    select: options.Select = [],  # noqa: B006
    exclude: options.Exclude = [],  # noqa: B006
    depth: options.Depth = None,
    ops: options.Operations = False,
    families: options.Families = None,
    of: options.Of = [],  # noqa: B006
    wrt: options.Wrt = [],  # noqa: B006
    cotangent: options.Cotangent = [],  # noqa: B006
    stop_gradient: options.StopGradient = [],  # noqa: B006
    fetch: options.Fetch = [],  # noqa: B006
    feed: options.Feed = [],  # noqa: B006
    stats_only: options.StatsOnly = False,
    exact_quantiles: options.ExactQuantiles = False,
    cast: options.Cast = None,
    check: options.Check = None,
    strict: options.Strict = False,
    sort: options.Sort = None,
    no_fold: options.NoFold = False,
    max_memory: options.MaxMemory = None,
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
    from gradscope.cli.inquiries import fragment_sentences, inquiry_of
    from gradscope.cli.jaxsetup import set_up_jax
    from gradscope.cli.printing import print_report
    from gradscope.cli.targets import asked_of
    from gradscope.naming import Selection
    from gradscope.naming.sizes import parse_size
    from gradscope.report import Query, dump_report
    from gradscope.stats import find

    sources = Sources(
        batch_size=batch_size, data=data, batch_index=batch_index, checkpoint=checkpoint, map_keys=map_keys
    )
    for name, given in {"of": of, "stop_gradient": stop_gradient, "fetch": fetch, "feed": feed}.items():
        options.require_one_of(self_check=self_check, **{name: given or None})  # it holds the loss against itself
        options.require_one_of(max_memory=max_memory, **{name: given or None})  # each run would have to be asked
    options.require_one_of(self_check=self_check, distributed=distributed)
    request = asked_of(target, inputs=inputs, loss=loss, train=train, seed=seed, sources=sources)
    rules = checked_rules(check) | {SELF_CHECK}
    selection, chosen = Selection.parse(select, exclude), options.family_set(families)
    notes = set_up_jax(
        x64=x64, dtype=dtype, matmul_precision=matmul_precision, cache=not no_cache, distributed=distributed
    )
    asked = _Options(
        target=target, request=request, output=output, seed=seed, sources=sources,
        dtype=None if dtype is None else dtype.value, self_check=self_check, stats_only=stats_only,
        exact_quantiles=exact_quantiles, widen=cast is not None, force=force, quiet=quiet, verbose=verbose,
        max_memory=None if max_memory is None else parse_size(max_memory),
    )  # fmt: skip
    from gradscope.capture.processes import speaks_for_all
    from gradscope.instrument.planning import EVERYTHING, Wanted

    wanted = Wanted(
        selection=selection, families=EVERYTHING if chosen is None else chosen, depth=depth, operations=ops,
        wrt=Selection.parse(wrt) if wrt else None,
    )  # fmt: skip
    inquiry = inquiry_of(of=of, cotangent=cotangent, stop_gradient=stop_gradient, fetch=fetch, feed=feed)
    _tell(() if quiet else notes)
    path, manifest = _run(asked, wanted, inquiry, context.obj)
    findings = find(manifest)
    if not speaks_for_all():
        raise typer.Exit(1 if trips(findings, rules) else 0)
    report = dump_report("dump", str(path), manifest, findings, query=Query(sort=sort), fold=not no_fold)
    _tell(() if quiet else fragment_sentences(manifest.provenance))
    print_report(report, options.chosen_format(output_format, json=json))
    unseen = manifest.ledger.unseen() if strict else ()
    _tell(tuple(unseen_sentences(unseen)))
    if unseen or trips(findings, rules):
        raise typer.Exit(1)


def _run(asked: _Options, wanted: Wanted, inquiry: Inquiry, interrupts: Interrupts) -> tuple[Path, Manifest]:
    """Load, run and write; returns where the dump is and what it holds."""
    from gradscope.capture.measured import TensorReading
    from gradscope.capture.one_shot import DumpRequest, dump_model
    from gradscope.capture.preparation import model_arguments
    from gradscope.capture.processes import dump_writer, is_shared
    from gradscope.capture.timings import Timings
    from gradscope.cli.progress import Progress
    from gradscope.cli.streams import remarks_aside
    from gradscope.cli.targets import model_of

    # What the model prints are remarks; standard output is for results.
    with remarks_aside(native=is_shared()), Progress(quiet=asked.quiet) as progress:
        model = model_of(asked.target, asked.request)
        path = asked.output or Path(model.slug if is_shared() else f"{model.slug}.npz")
        writer = dump_writer(path, force=asked.force)
        interrupts.on_interrupt(writer.discard)
        arguments = model_arguments(
            model, seed=asked.seed, batch_size=asked.sources.batch_size, dtype=asked.dtype,
            data=asked.sources.data_request(), checkpoint=asked.sources.checkpoint_request(),
        )  # fmt: skip
        _tell((*(model.choices if asked.verbose else ()), *(() if asked.quiet else arguments.notes)))
        request = DumpRequest(
            wanted=wanted,
            inquiry=inquiry,
            reading=TensorReading(keep=not asked.stats_only, exact_quantiles=asked.exact_quantiles, widen=asked.widen),
            self_check=asked.self_check,
            facts={"seed": asked.seed, "batch_size": arguments.batch_size, **asked.sources.facts()},
            max_memory=asked.max_memory,
            tell=lambda sentence: _tell(() if asked.quiet else (sentence,)),
        )
        with writer:
            manifest = dump_model(model, arguments, request, writer, Timings(progress.phase))
    return path, manifest


def _tell(sentences: tuple[str, ...]) -> None:
    from gradscope.cli.printing import say

    for sentence in sentences:
        say(sentence)
