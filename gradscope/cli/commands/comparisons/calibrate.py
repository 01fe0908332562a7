"""`gradscope calibrate` writes a reference dump together with its own noise floor."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from gradscope.cli.options import shared as options
from gradscope.cli.options.model_options import ModelOptions
from gradscope.cli.options.report_options import SelectionOptions

if TYPE_CHECKING:
    from gradscope.capturing.calibration import Calibrated

#: The most tensors that are named in one line.
_NAMED: Final = 3


def calibrate(
    target: options.Target,
    *,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE.npz", help="The file to write.")],
    model_options: ModelOptions,
    no_cache: options.NoCache = False,
    selection_options: SelectionOptions,
    per_example: options.PerExample = False,
    force: options.Force = False,
    quiet: options.Quiet = False,
) -> None:
    """Dump a reference with its noise floor: how far each tensor moves under changes that make no difference.

    'gradscope compare' judges by it. The model runs six times, seven in float64; two runs are in memory at a time.
    """
    from gradscope.cli.printing import print_line, say
    from gradscope.cli.running.starting_jax.jax_setup import set_up_jax

    # A relative path is one of the folder at the start, whatever the model does to it.
    start = Path.cwd()
    request = model_options.request(target)
    selection, families = selection_options.selection(), selection_options.family_set()
    for note in set_up_jax(model_options, (target, "calibrate"), cache=not no_cache):
        if not quiet:
            say(note)
    from gradscope.capturing.calibration import calibrate as calibrated
    from gradscope.capturing.dump_model import DumpRequest
    from gradscope.capturing.timings import Timings
    from gradscope.cli.running.terminal.progress import Progress
    from gradscope.cli.standard_streams import stdout_to_stderr
    from gradscope.comparison.judging.limits.noise import LOW_PRECISION_NOISE
    from gradscope.dump.manifest.provenance import without_folder
    from gradscope.dump.storage.writing.read_files import reads_remembered
    from gradscope.dump.writer import DumpWriter
    from gradscope.instrument.query.capture_spec import EVERYTHING, CaptureSpec

    spec = CaptureSpec(
        selection=selection, families=EVERYTHING if families is None else families, depth=selection_options.depth,
        per_example=per_example,
    )  # fmt: skip
    with stdout_to_stderr(), Progress(quiet=quiet) as progress:
        with reads_remembered(anew=True):
            model = model_options.model(target, request)
        with options.working_in(start):
            writer = DumpWriter(output, force=force, inputs=model_options.input_files)
        with reads_remembered():
            arguments = model_options.arguments(model)
        dtypes = [dtype for dtype in LOW_PRECISION_NOISE if model_options.x64 or dtype != "float32"]
        lower = {dtype: model_options.arguments(model, dtype=dtype) for dtype in dtypes}
        with writer, reads_remembered():
            facts = {"target": without_folder(target), **model_options.facts(arguments)}
            dump_request = DumpRequest(spec=spec, facts=facts, explain=False)
            found = calibrated(model, arguments, lower, dump_request, Timings(progress.phase))
            found.write_to(writer)
    for line in _summary(output, found):
        print_line(line)


def _summary(output: Path, found: Calibrated) -> list[str]:
    lines = [f"{output}  {len(found.noise):,} tensors with their noise floors"]
    noise = {key: floors for key, floors in found.noise.items() if key not in found.rounding}
    for statistic in dict.fromkeys(name for floors in noise.values() for name in floors):
        key, floors = max(noise.items(), key=lambda item, name=statistic: item[1].get(name, 0.0))
        lines.append(f"{statistic}  at most {floors.get(statistic, 0.0):.2g}, at {key}")
    if found.rounding:
        some = sorted(found.rounding)
        more = f" and {len(some) - _NAMED:,} more" if len(some) > _NAMED else ""
        lines.append(f"rounding  without those that are zero but for rounding: {', '.join(some[:_NAMED])}{more}")
    for statistic, error in found.refused.items():
        reason = str(error).splitlines()[0].rstrip(":")
        lines.append(f"{statistic}  not measured, as the model does not run in that type: {reason}")
    examples = found.dump.manifest.examples
    return lines if examples is None else [*lines, f"examples  {examples.sentence}"]
