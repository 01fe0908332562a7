"""`gradscope calibrate`: a reference dump together with its own noise floor."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gradscope.cli import options
from gradscope.cli.interrupts import Interrupts
from gradscope.cli.sources import BatchIndex, Checkpoint, Data, MapKeys, Sources

if TYPE_CHECKING:
    from gradscope.capture.calibration import Calibrated
    from gradscope.dump.record import Json
    from gradscope.frameworks.request import Request
    from gradscope.instrument.planning import Wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    """What the command line asks of the runs."""

    target: str
    request: Request
    output: Path
    seed: int
    sources: Sources
    force: bool
    quiet: bool


def calibrate(
    context: typer.Context,
    target: options.Target,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE.npz", help="Where to write.")],
    seed: options.Seed = 0,
    batch_size: options.BatchSize = None,
    data: Data = None,
    batch_index: BatchIndex = None,
    checkpoint: Checkpoint = None,
    map_keys: MapKeys = None,
    inputs: options.Input = [],  # noqa: B006 - typer reads the default and never changes it
    loss: options.LossOf = None,
    train: options.Train = None,
    x64: options.X64 = False,
    matmul_precision: options.MatmulPrecision = None,
    no_cache: options.NoCache = False,
    select: options.Select = [],  # noqa: B006
    exclude: options.Exclude = [],  # noqa: B006
    depth: options.Depth = None,
    families: options.Families = None,
    force: options.Force = False,
    quiet: options.Quiet = False,
    traceback: options.Traceback = False,  # noqa: ARG001 - the error boundary reads it
) -> None:
    """Dump a reference with its noise floor: how far each tensor moves under changes that make no difference.

    'gradscope compare' judges by it. The model runs six times, and two runs are held in memory at a time.
    """
    from gradscope.cli.jaxsetup import set_up_jax
    from gradscope.cli.printing import print_line, say
    from gradscope.cli.targets import asked_of
    from gradscope.naming import Selection

    sources = Sources(
        batch_size=batch_size, data=data, batch_index=batch_index, checkpoint=checkpoint, map_keys=map_keys
    )
    request = asked_of(target, inputs=inputs, loss=loss, train=train, seed=seed, sources=sources)
    selection, chosen = Selection.parse(select, exclude), options.family_set(families)
    notes = set_up_jax(x64=x64, dtype=None, matmul_precision=matmul_precision, cache=not no_cache)
    from gradscope.instrument.planning import EVERYTHING, Wanted

    wanted = Wanted(selection=selection, families=EVERYTHING if chosen is None else chosen, depth=depth)
    asked = _Options(
        target=target, request=request, output=output, seed=seed, sources=sources, force=force, quiet=quiet
    )
    for note in () if quiet else notes:
        say(note)
    found = _run(asked, wanted, context.obj)
    for line in _summary(output, found):
        print_line(line)


def _run(asked: _Options, wanted: Wanted, interrupts: Interrupts) -> Calibrated:
    """Load, run and write."""
    from gradscope.capture.calibration import calibrate as calibrated
    from gradscope.capture.one_shot import DumpRequest
    from gradscope.capture.preparation import model_arguments
    from gradscope.capture.timings import Timings
    from gradscope.cli.progress import Progress
    from gradscope.cli.streams import remarks_aside
    from gradscope.cli.targets import model_of
    from gradscope.dump.writer import DumpWriter

    with remarks_aside(), Progress(quiet=asked.quiet) as progress:
        model = model_of(asked.target, asked.request)
        writer = DumpWriter(asked.output, force=asked.force)
        interrupts.on_interrupt(writer.discard)
        arguments, low = (
            model_arguments(
                model,
                seed=asked.seed,
                batch_size=asked.sources.batch_size,
                dtype=dtype,
                data=asked.sources.data_request(),
                checkpoint=asked.sources.checkpoint_request(),
            )
            for dtype in (None, "bfloat16")
        )
        facts: dict[str, Json] = {
            "seed": asked.seed, "batch_size": arguments.batch_size, **asked.sources.facts()
        }  # fmt: skip
        with writer:
            found = calibrated(model, arguments, low, DumpRequest(wanted=wanted, facts=facts), Timings(progress.phase))
            found.write_to(writer)
    return found


def _summary(output: Path, found: Calibrated) -> list[str]:
    lines = [f"{output}  {len(found.noise):,} tensors with their noise floors"]
    for statistic in dict.fromkeys(name for floors in found.noise.values() for name in floors):
        key, floors = max(found.noise.items(), key=lambda item, name=statistic: item[1].get(name, 0.0))
        lines.append(f"{statistic}  at most {floors.get(statistic, 0.0):.2g}, at {key}")
    return lines
