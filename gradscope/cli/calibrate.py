"""`gradscope calibrate`: a reference dump together with its own noise floor."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gradscope.cli import options
from gradscope.cli.interrupts import Interrupts

if TYPE_CHECKING:
    from gradscope.capture.calibration import Calibrated
    from gradscope.instrument.planning import Wanted


def calibrate(
    context: typer.Context,
    target: options.Target,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE.npz", help="Where to write.")],
    seed: options.Seed = 0,
    batch_size: options.BatchSize = None,
    data: options.Data = None,
    x64: options.X64 = False,
    matmul_precision: options.MatmulPrecision = None,
    no_cache: options.NoCache = False,
    select: options.Select = [],  # noqa: B006 - typer reads the default and never changes it
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
    from gradscope.naming import Selection
    from gradscope.tracing.target import parse_target

    options.require_one_of(batch_size=batch_size, data=data)
    parse_target(target)  # a target of the wrong form is told before JAX is imported
    selection, chosen = Selection.parse(select, exclude), options.family_set(families)
    notes = set_up_jax(x64=x64, dtype=None, matmul_precision=matmul_precision, cache=not no_cache)
    from gradscope.instrument.planning import EVERYTHING, Wanted

    wanted = Wanted(selection=selection, families=EVERYTHING if chosen is None else chosen, depth=depth)
    for note in () if quiet else notes:
        say(note)
    with redirect_stdout(sys.stderr):
        found = _run(target, output, wanted, (seed, batch_size, data), (force, quiet), context.obj)
    for line in _summary(output, found):
        print_line(line)


def _run(
    target: str,
    output: Path,
    wanted: Wanted,
    batch: tuple[int, int | None, Path | None],
    manner: tuple[bool, bool],
    interrupts: Interrupts,
) -> Calibrated:
    """Load, run and write."""
    from gradscope.capture.calibration import calibrate as calibrated
    from gradscope.capture.one_shot import DumpRequest
    from gradscope.capture.preparation import model_arguments
    from gradscope.capture.timings import Timings
    from gradscope.cli.progress import Progress
    from gradscope.dump.writer import DumpWriter
    from gradscope.tracing.loader import load_model

    seed, batch_size, data = batch
    force, quiet = manner
    with Progress(quiet=quiet) as progress:
        model = load_model(target)
        writer = DumpWriter(output, force=force)
        interrupts.on_interrupt(writer.discard)
        arguments, low = (
            model_arguments(model, seed=seed, batch_size=batch_size, dtype=dtype, data=data)
            for dtype in (None, "bfloat16")
        )
        request = DumpRequest(wanted=wanted, facts={"seed": seed, "batch_size": arguments.batch_size})
        with writer:
            found = calibrated(model, arguments, low, request, Timings(progress.phase))
            found.write_to(writer)
    return found


def _summary(output: Path, found: Calibrated) -> list[str]:
    lines = [f"{output}  {len(found.noise):,} tensors with their noise floors"]
    for statistic in dict.fromkeys(name for floors in found.noise.values() for name in floors):
        key, floors = max(found.noise.items(), key=lambda item, name=statistic: item[1].get(name, 0.0))
        lines.append(f"{statistic}  at most {floors.get(statistic, 0.0):.2g}, at {key}")
    return lines
