"""`gradscope check`: are a model's gradients right?"""

from __future__ import annotations

import sys
from contextlib import redirect_stdout

import typer

from gradscope.cli import options
from gradscope.cli.options import Format
from gradscope.cli.sources import BatchIndex, Checkpoint, Data, MapKeys, Sources


def check(
    target: options.Target,
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
    no_cache: options.NoCache = False,
    output_format: options.OutputFormat = Format.TABLE,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    traceback: options.Traceback = False,  # noqa: ARG001 - the error boundary reads it
) -> None:
    """Hold gradients to finite differences in float64, to jax.grad, and to themselves run again.

    Functions with a custom differentiation rule are held to it one by one. The model file is imported and run with your
    rights. Exit status: 0 correct, 1 wrong, 2 nothing could be checked.
    """
    from gradscope.cli.jaxsetup import set_up_jax
    from gradscope.cli.printing import print_report, say
    from gradscope.cli.progress import Progress
    from gradscope.cli.targets import asked_of, model_of
    from gradscope.report import ProofReport

    sources = Sources(
        batch_size=batch_size, data=data, batch_index=batch_index, checkpoint=checkpoint, map_keys=map_keys
    )
    request = asked_of(target, inputs=inputs, loss=loss, train=train, seed=seed, sources=sources)
    notes = set_up_jax(x64=x64, dtype=dtype, matmul_precision=matmul_precision, cache=not no_cache)
    from gradscope.capture.preparation import model_arguments
    from gradscope.capture.timings import Timings
    from gradscope.proof.proving import prove

    # What the model prints are remarks; standard output is for results.
    with redirect_stdout(sys.stderr), Progress(quiet=quiet) as progress:
        model = model_of(target, request)
        arguments = model_arguments(
            model,
            seed=seed,
            batch_size=batch_size,
            dtype=None if dtype is None else dtype.value,
            data=sources.data_request(),
            checkpoint=sources.checkpoint_request(),
        )
        found = prove(model, arguments, Timings(progress.phase), seed=seed)
        for sentence in (
            *(model.choices if verbose else ()),
            *(() if quiet else (*notes, *arguments.notes, *found.notes)),
        ):
            say(sentence)
    report = ProofReport(target=target, verdict=found.verdict, claims=[row.to_json() for row in found.rows])
    print_report(report, options.chosen_format(output_format, json=json))
    if found.verdict != "correct":
        raise typer.Exit(1 if found.verdict == "wrong" else 2)
