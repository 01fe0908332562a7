"""`gradscope train` trains a model and records what happens inside it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from gradscope.cli.commands.runs.recording_options import RecordOptions
from gradscope.cli.interrupts import Interrupts
from gradscope.cli.options import shared as options
from gradscope.cli.options.model_options import ModelOptions
from gradscope.cli.options.report_options import Format, FormatOptions, NameOptions
from gradscope.cli.options.training_options import StepOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from gradscope.capturing.execution.arguments import Arguments
    from gradscope.dump.record import Json
    from gradscope.frameworks.modules.request import Request
    from gradscope.tracing.loading.model import Model
    from gradscope.training.loop.train_request import Outcome

Steps = Annotated[int, typer.Option(min=1, metavar="N", help="How many steps the run has in the end, resumed or not.")]
Run = Annotated[Path, typer.Option("--output", "-o", metavar="RUN", help="The folder of the run.")]

#: The status of a process that a signal ended is this and the number of the signal.
_SIGNALLED: Final = 128


def train(
    context: typer.Context,
    target: options.Target,
    *,
    steps: Steps,
    output: Run,
    step_options: StepOptions,
    record_options: RecordOptions,
    model_options: ModelOptions,
    name_options: NameOptions,
    devices: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Spread the examples of each batch over so many local devices.",
            rich_help_panel="Optimizer",
        ),
    ] = None,
    distributed: Annotated[
        str | None,
        typer.Option(
            metavar="WHERE",
            help="Run as one of several processes, each started so: auto, or HOST:PORT,COUNT,INDEX. The first writes.",
            rich_help_panel="Optimizer",
        ),
    ] = None,
    no_cache: options.NoCache = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Replace a run in the folder; with --resume, continue it with other options.",
            rich_help_panel="Output",
        ),
    ] = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    format_options: FormatOptions,
) -> None:  # fmt: skip
    """Train a model, and record every layer, gradient, update and optimizer variable at chosen steps.

    On a terminal it ends with the trends on one screen, as 'gradscope show RUN' has them; every other place has the
    tables of the last step. --json and the other formats have their rows.

    The model file is imported and run with your rights: only train a model whose code you would run.
    """
    from gradscope.cli.options.checked_findings import failure_sentence, failures_of_run
    from gradscope.cli.printing import say
    from gradscope.cli.running.starting_jax.jax_setup import set_up_jax
    from gradscope.errors import UsageError

    if model_options.batch_index is not None:
        raise UsageError("--batch-index has no meaning here: step n takes batch n", hint="leave it out")
    # A relative path is one of the folder at the start, whatever the model does to it.
    start, model_request = Path.cwd(), model_options.request(target)
    step_options.factors()
    checked = record_options.checked()
    notes = set_up_jax(model_options, (target, "train", step_options), cache=not no_cache, distributed=distributed)
    from gradscope.capturing.records.distributed import speaks_for_all

    quiet = quiet or not speaks_for_all()
    notify: Callable[[str], None] = (lambda _line: None) if quiet else say
    for note in notes:
        notify(note)
    signals: list[int] = []

    def ask(number: int) -> None:
        signals.append(number)
        notify("stopping after this step and saving the state; once more ends at once")

    outcome = _trained(
        target, model_request, steps=steps, output=output, step_options=step_options, record_options=record_options,
        model_options=model_options, name_options=name_options, force=force, quiet=quiet, verbose=verbose,
        devices=devices, stop=lambda: signals[0] if signals else 0, ask=ask, interrupts=context.obj, start=start,
    )  # fmt: skip
    if outcome.signal and outcome.steps < steps and not outcome.stopped:
        notify(f"stopped after {outcome.steps:,} of {steps:,} steps; the same command with --resume goes on")
        raise typer.Exit(_SIGNALLED + outcome.signal)
    tripped = any(alarm.rule in checked for alarm in outcome.alarms)
    if speaks_for_all():
        with options.working_in(start):
            _print_results(output, outcome, format_options, checked)
            found = failures_of_run(output, outcome.alarms, checked)
        if tripped := bool(found):
            say(failure_sentence(found))
    if outcome.stopped or tripped:
        raise typer.Exit(1)


def _trained(
    target: str, model_request: Request, *, steps: int, output: Path, step_options: StepOptions,
    record_options: RecordOptions, model_options: ModelOptions, name_options: NameOptions, force: bool, quiet: bool,
    verbose: bool, devices: int | None, stop: Callable[[], int], ask: Callable[[int], None], interrupts: Interrupts,
    start: Path,
) -> Outcome:  # fmt: skip
    from gradscope.capturing.records.distributed import is_shared
    from gradscope.cli.printing import say
    from gradscope.cli.running.terminal.progress import Progress
    from gradscope.cli.running.terminal.training_progress import TrainingProgress
    from gradscope.cli.standard_streams import stdout_to_stderr
    from gradscope.dump.storage.writing.read_files import reads_remembered
    from gradscope.training.loop.placement import Placement
    from gradscope.training.loop.processes import Processes
    from gradscope.training.loop.resuming import opened, options_before
    from gradscope.training.loop.train_request import TrainRequest
    from gradscope.training.loop.training_loop import train
    from gradscope.training.recording.noise_rows import noise_cost

    processes = Processes()
    with stdout_to_stderr(), Progress(quiet=quiet) as progress:
        with reads_remembered(anew=True):
            model = model_options.model(target, model_request)
        for choice in model.choices if verbose else ():
            say(choice)
        folder_at_start = start / output  # of the folder at the start, wherever the model has gone
        step = step_options.step(
            model, name_options.select, name_options.exclude,
            before=lambda: options_before(folder_at_start) if record_options.resume else {},
        )  # fmt: skip
        with reads_remembered():
            arguments = model_options.arguments(model)
        for note in () if quiet else arguments.notes:
            say(note)
        chosen = {"TARGET": target, **_described(model, model_options), **step_options.described()}
        place = None
        if devices is not None or is_shared():
            place = Placement(devices, arguments.shapes[1], arguments.batch_size)
            chosen["--devices"] = str(place.count)
        notify: Callable[[str], None] = (lambda _line: None) if quiet else say
        if record_options.per_example_every is not None:
            notify(noise_cost(
                arguments.shapes[1], arguments.batch_size, every=record_options.per_example_every,
                group_size=record_options.microbatch,
            ))  # fmt: skip
        shown = TrainingProgress(
            progress, notify, steps=steps, log_every=record_options.log_every
        )  # fmt: skip
        request = TrainRequest(
            model=model, arguments=arguments, batch=_batches(model_options, model, arguments), step=step, steps=steps,
            every=record_options.every, histograms_every=record_options.histograms_every,
            noise_every=record_options.per_example_every, microbatch=record_options.microbatch,
            placement=place, processes=processes, trace_every=record_options.trace_every,
            tensorboard=record_options.tensorboard,
            saving=record_options.saving(), check_numerics=record_options.check_numerics,
            is_dumped=record_options.dumped(steps), on_alarm=record_options.on_alarm.value,
            keep_alarms=record_options.keep_alarms, notify=notify, options=chosen,
            facts=_facts(model, model_options.facts(arguments)), stop=stop, progress=shown, phase=progress.phase,
        )  # fmt: skip
        with options.working_in(start):
            opened_folder = opened(
                output, chosen, resume=record_options.resume, force=force, processes=processes,
                inputs=model_options.input_files,
            )  # fmt: skip
        with opened_folder as folder:
            progress.phase("compile")
            with interrupts.asking(ask):
                return train(request, folder, resume=record_options.resume)


def _described(model: Model, options: ModelOptions) -> dict[str, str]:
    """Returns what decides the numbers of a run beside its step: the model, and the options it was made with."""
    from gradscope.training.loop.resuming import DATA_FILE, MODEL_FILE
    from gradscope.training.loop.step_batches import data_sha256

    location = options.data_location
    specified = {
        "--seed": options.seed, "--batch-size": options.batch_size, "--data": options.data, "--input": options.inputs,
        "--checkpoint": options.checkpoint and options.checkpoint.name, "--loss": options.loss,
        "--train": options.train, "--dtype": options.dtype, "--x64": options.x64 or None,
        "--matmul-precision": options.matmul_precision, MODEL_FILE: model.file_sha256,
        DATA_FILE: None if location is None else data_sha256(location),
    }  # fmt: skip
    return {name: str(value) for name, value in specified.items() if value not in (None, [])}


def _facts(model: Model, options: dict[str, Json]) -> dict[str, Json]:
    from gradscope.capturing.run_environment import machine_provenance, model_provenance
    from gradscope.dump.manifest.provenance import command_line

    source = model_provenance(model.source, model.file_sha256)
    return {"model": model.name, **source, **options, **machine_provenance(), "argv": command_line()}


def _print_results(path: Path, outcome: Outcome, format_options: FormatOptions, checked: frozenset[str]) -> None:
    """Prints the tables of the last step, or on a terminal, which has no room for them, the trends on one screen."""
    from gradscope.cli.printing import print_report, screen
    from gradscope.history.history_reader import History
    from gradscope.presentation import step_report, trends_report

    chosen, resumed_from = format_options.chosen, outcome.resumed_from
    with History(path) as history:
        if chosen is Format.TABLE and screen().width is not None:
            report = trends_report(
                str(path), history, command="train", overview=True, resumed_from=resumed_from, checked=checked
            )
        else:
            report = step_report("train", str(path), history, None, resumed_from=resumed_from, checked=checked)
    print_report(report, chosen)


def _batches(model_options: ModelOptions, model: Model, arguments: Arguments) -> Callable[[int], Any]:
    """Returns the function that makes the batch of a step, by number: those of `--data`, or the model's own."""
    from gradscope.training.loop.step_batches import data_batches, own_batches

    seed, dtype = model_options.seed, model_options.dtype
    if (location := model_options.data_location) is not None:
        return data_batches(location, arguments, seed=seed)
    return own_batches(model, arguments, seed=seed, dtype=None if dtype is None else dtype.value)
