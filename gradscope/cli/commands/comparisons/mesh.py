"""`gradscope mesh` runs a model on several numbers of devices, and says whether that changes its gradients, and how."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from gradscope.cli.options import shared as options
from gradscope.cli.options.model_options import ModelOptions
from gradscope.cli.options.report_options import ComparisonFormatOptions, SelectionOptions
from gradscope.cli.running.blas import keep_single_threaded
from gradscope.errors import GradscopeError, MachineError, UsageError
from gradscope.naming.wording import counted

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from gradscope.capturing.execution.arguments import Arguments
    from gradscope.tracing.loading.model import Model

#: The most devices that a run is asked to have: each is a thread or more of a CPU that is split.
_MOST_DEVICES: Final = 512


def mesh(
    context: typer.Context,
    target: options.Target,
    *,
    devices: Annotated[
        str,
        typer.Option(
            metavar="N,N,...",
            help="Numbers of devices: more are compared with the fewest. A CPU is split into as many.",
        ),
    ] = "1,2,4",
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FOLDER", help="The folder for the dumps, devices-N.npz.")
    ] = Path("mesh"),
    model_options: ModelOptions,
    no_cache: options.NoCache = False,
    selection_options: SelectionOptions,
    ops: Annotated[
        bool,
        typer.Option(
            "--ops",
            help="Every operation, and not only layers: a fault has its operation.",
            rich_help_panel="What is shown",
        ),
    ] = False,
    tol: Annotated[
        list[str],
        typer.Option(
            metavar="[REGEX=]EXPR", help="A limit on rel_l2, as of compare. Repeatable.", rich_help_panel="How strictly"
        ),
    ] = [],  # noqa: B006 - Typer makes a new one
    everything: Annotated[
        bool, typer.Option("--all", help="Also show the rows that are the same.", rich_help_panel="What is shown")
    ] = False,
    run_on: Annotated[int | None, typer.Option(hidden=True)] = None,
    full: options.Full = False,
    format_options: ComparisonFormatOptions,
    force: options.Force = False,
    quiet: options.Quiet = False,
) -> None:
    """Run one batch on one device and on several, and compare: does sharding change the gradients, and how?

        gradscope mesh model.py --devices 1,2,4 --batch-size 8

    The model makes its mesh of jax.devices(), of which there are as many as requested. Where neither the model nor its
    batch has a mesh, the examples are divided among the devices. A difference has a kind: a factor and its axis, terms
    that nothing adds up, statistics of a part of the batch, a random mask, an order of slices; and the collective and
    the line next to it. Each number of devices has a process of its own, and its dump stays.

    Exit status: 0 the same within tolerance, 1 different, 2 nothing could be compared.
    """
    if run_on is not None:
        with _naming_devices(run_on):
            _dump(target, run_on, output, model_options, selection_options, ops=ops, cache=not no_cache, quiet=quiet)
        return
    keep_single_threaded()
    from gradscope.cli.options.judge_options import JudgeOptions
    from gradscope.cli.printing import print_report, say
    from gradscope.cli.running.mesh_processes import run_on as run_process
    from gradscope.cli.running.mesh_processes import spelled
    from gradscope.presentation import MeshReport

    counts = _counts(devices)
    model_options.request(target)  # before the work
    selection_options.family_set()
    compare_options = JudgeOptions(tol=tol).options(selection_options.selection())
    again = [
        *spelled(model_options), *spelled(selection_options), f"--output={output}", *(["--ops"] if ops else []),
        *(["--no-cache"] if no_cache else []), *(["--quiet"] if quiet else []),
    ]  # fmt: skip
    with _prepared_folder(output, counts, target, force=force):
        for count in counts:
            if not quiet:
                say(f"running on {counted(count, 'device')}")
            if status := run_process(count, ["mesh", f"--run-on={count}", *again, "--", target], context.obj):
                # A process that a library has ended does not say on how many devices it ran.
                say(f"the run on {counted(count, 'device')} ended with status {status}")
                raise typer.Exit(status)
        from gradscope.comparison.follow_ups.mesh_comparison import compared_meshes

        found = compared_meshes({count: _path(output, count) for count in counts}, compare_options)
    overview = not (full or everything or selection_options.is_set)
    report = MeshReport(found=found, operations=ops, everything=everything, overview=overview)
    print_report(report, format_options.chosen, target)
    if found.exit_code:
        raise typer.Exit(found.exit_code)


def _counts(text: str) -> list[int]:
    """Returns the numbers of devices that an option lists, the fewest first.

    Raises:
        UsageError: They are no numbers from 1, fewer than two, or one of them is there twice.
    """
    words = [word.strip() for word in text.split(",")]
    counts = [int(word) if word.isascii() and word.isdecimal() and len(word) < 5 else 0 for word in words]
    if min(counts) < 1 or max(counts) > _MOST_DEVICES:
        raise UsageError(f"--devices {text!r} is no list of numbers from 1 to {_MOST_DEVICES}", hint="such as 1,2,4")
    if len(counts) < 2 or len({*counts}) < len(counts):
        raise UsageError(f"--devices {text!r}: two or more different numbers are compared", hint="such as 1,2,4")
    return sorted(counts)


def _path(folder: Path, count: int) -> Path:
    return folder / f"devices-{count}.npz"


@contextmanager
def _prepared_folder(folder: Path, counts: Sequence[int], target: str, *, force: bool) -> Generator[None]:
    """Makes the folder of the output, which does not stay where the block fails and left nothing in it.

    No other command of this kind writes to it meanwhile: the dumps of two would be compared with each other.

    Raises:
        UsageError: It is no folder, has other files than dumps of the target, or another command writes to it.
        MachineError: It cannot be made.
    """
    from gradscope.cli.running.default_output import replaces_own_dump
    from gradscope.dump.manifest.provenance import without_folder
    from gradscope.dump.storage.writing.atomic_folder import made_folder
    from gradscope.dump.storage.writing.companions import alone_in

    with ExitStack() as made:
        try:
            made.enter_context(made_folder(folder))
        except FileExistsError as error:
            raise UsageError(f"{folder} is not a folder", hint="name a folder with --output") from error
        except OSError as error:
            message = f"the folder {folder} cannot be made: {error.strerror}"
            raise MachineError(message, hint="name another one") from error
        made.enter_context(alone_in(folder, waiting=0))
        for count in () if force else counts:
            replaces_own_dump(_path(folder, count), without_folder(target))
        yield


@contextmanager
def _naming_devices(count: int) -> Generator[None]:
    """Makes an error in the block name the number of devices."""
    try:
        yield
    except GradscopeError as error:
        error.message = f"on {counted(count, 'device')}: {error.message}"
        raise


def _dump(
    target: str, count: int, folder: Path, model_options: ModelOptions, selection_options: SelectionOptions, *,
    ops: bool, cache: bool, quiet: bool,
) -> None:  # fmt: skip
    """Writes the dump of the devices of this process."""
    from gradscope.cli.printing import say
    from gradscope.cli.running.starting_jax.jax_setup import set_up_jax

    request, start = model_options.request(target), Path.cwd()
    for note in set_up_jax(model_options, (target, "mesh", count, selection_options, ops), cache=cache):
        if not quiet:
            say(note)
    from gradscope.capturing.dump_model import DumpRequest, dump_model
    from gradscope.capturing.timings import Timings
    from gradscope.cli.running.terminal.progress import Progress
    from gradscope.cli.standard_streams import stdout_to_stderr
    from gradscope.dump.manifest.provenance import without_folder
    from gradscope.dump.storage.writing.read_files import reads_remembered
    from gradscope.dump.writer import DumpWriter
    from gradscope.instrument.query.capture_spec import EVERYTHING, CaptureSpec

    _require_devices(count)
    families = selection_options.family_set()
    spec = CaptureSpec(
        selection=selection_options.selection(), families=EVERYTHING if families is None else families,
        depth=selection_options.depth, operations=ops,
    )  # fmt: skip
    with stdout_to_stderr(), Progress(quiet=quiet) as progress:
        with reads_remembered(anew=True):
            model = model_options.model(target, request)
        with options.working_in(start):
            writer = DumpWriter(_path(folder, count), force=True, inputs=model_options.input_files)
        with reads_remembered():
            arguments = _divided(model, model_options.arguments(model))
        with writer, reads_remembered():
            facts = {"target": without_folder(target), **model_options.facts(arguments)}
            dump_model(
                model, arguments, DumpRequest(spec=spec, facts=facts, explain=False), writer, Timings(progress.phase)
            )


def _require_devices(count: int) -> None:
    """Raises `MachineError` where JAX has another number of devices than this process was started for."""
    import jax

    if jax.device_count() != count:
        raise MachineError(
            f"JAX has {jax.device_count()} of platform {jax.default_backend()!r}",
            hint="request as many as there are, or split a CPU: JAX_PLATFORMS=cpu",
        )


def _divided(model: Model, arguments: Arguments) -> Arguments:
    """Returns arguments whose examples are divided among the devices, where neither program nor arrays have a mesh."""
    from dataclasses import replace

    import jax

    from gradscope.tracing.lookup.collectives import mesh_axes
    from gradscope.tracing.tracer import trace_loss
    from gradscope.tracing.user_frames import user_code
    from gradscope.training.loop.placement import Placement

    with user_code(f"loss of {model.name}"):
        trace = trace_loss(model.loss, *arguments.shapes)
    if mesh_axes(trace, jax.tree_util.tree_leaves(arguments.shapes)):
        return arguments
    place = Placement(None, arguments.shapes[1], arguments.batch_size)

    def make() -> tuple[object, object]:
        variables, batch = arguments.make()
        return place.replicated(variables), place.spread(batch)

    return replace(arguments, shapes=place.shapes(*arguments.shapes), make=make)
