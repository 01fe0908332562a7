"""`gradscope inspect`: what a model is, without running it."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout

from gradscope.cli import options
from gradscope.cli.options import Format
from gradscope.cli.sources import BatchIndex, Checkpoint, Data, MapKeys, Sources


def inspect(
    target: options.Target,
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
    select: options.Select = [],  # noqa: B006
    exclude: options.Exclude = [],  # noqa: B006
    depth: options.Depth = None,
    families: options.Families = None,
    sort: options.Sort = None,
    output_format: options.OutputFormat = Format.TABLE,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    traceback: options.Traceback = False,  # noqa: ARG001 - the error boundary reads it
) -> None:
    """Tell layers, shapes, parameters, FLOPs and bytes of a model from its trace: nothing is compiled or run.

    The model file is imported with your rights: only inspect a model whose code you would run.
    """
    from gradscope.cli.jaxsetup import set_up_jax
    from gradscope.cli.printing import print_report, say
    from gradscope.cli.targets import asked_of, model_of
    from gradscope.naming import Selection
    from gradscope.report import Query, Row, inspection_report

    sources = Sources(
        batch_size=batch_size, data=data, batch_index=batch_index, checkpoint=checkpoint, map_keys=map_keys
    )
    request = asked_of(target, inputs=inputs, loss=loss, train=train, sources=sources)
    query = Query(
        selection=Selection.parse(select, exclude), families=options.family_set(families), depth=depth, sort=sort
    )
    set_up_jax(x64=x64, dtype=dtype, matmul_precision=None, cache=False)
    from gradscope.capture.preparation import model_arguments
    from gradscope.inspection.inspecting import inspect_loss
    from gradscope.tracing.userframes import user_code

    with redirect_stdout(sys.stderr):  # what the model prints are remarks
        model = model_of(target, request)
        arguments = model_arguments(
            model,
            seed=0,
            batch_size=batch_size,
            dtype=None if dtype is None else dtype.value,
            data=sources.data_request(),
            checkpoint=sources.checkpoint_request(),
        )
        for sentence in (*(model.choices if verbose else ()), *(() if quiet else arguments.notes)):
            say(sentence)
        with user_code(f"loss of {model.name}"):
            found = inspect_loss(model.loss, *arguments.shapes)
    rows = [Row(family=fact.family, name=fact.name, values=fact.values) for fact in found.facts]
    report = inspection_report(target, arguments.batch_size, rows, found.totals, query=query)
    print_report(report, options.chosen_format(output_format, json=json))
