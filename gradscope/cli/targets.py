"""Targets on the command line: the model that one names, with what options say about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gradscope.cli.options import Loss

if TYPE_CHECKING:
    from gradscope.cli.sources import Sources
    from gradscope.frameworks.request import Request
    from gradscope.tracing.model import Model


def asked_of(
    target: str,
    *,
    inputs: Sequence[str],
    loss: Loss | None,
    train: bool | None,
    seed: int = 0,
    sources: Sources,
) -> Request:
    """What the options say about a target's model; told before JAX is imported where it is wrong.

    Args:
        target: The target.
        inputs: `--input`, as written.
        loss: `--loss`.
        train: `--train/--eval`.
        seed: `--seed`.
        sources: Where variables and batch come from.

    Raises:
        UsageError: The target or an input is not of the right form, or options contradict each other.
        DumpError: The data file cannot be read.
    """
    from gradscope.frameworks.inputspec import parse_input
    from gradscope.frameworks.request import Request
    from gradscope.tracing.datashapes import data_shapes
    from gradscope.tracing.target import parse_target

    sources.require_sense()
    parse_target(target)
    return Request(
        inputs=tuple(map(parse_input, inputs)),
        loss=None if loss is None else loss.value,
        train=train,
        seed=seed,
        batch_size=sources.batch_size,
        data={} if sources.data_file is None else data_shapes(sources.data_file),
        checkpoint=sources.checkpoint,
    )


def model_of(target: str, request: Request) -> Model:
    """The model that a target names, ready to be run.

    Raises:
        UsageError: There is no such file, module or name, or the model does not take what the request says.
        ModelError: The file does not import, or what it names is not a model.
    """
    from gradscope.tracing.loader import load_model
    from gradscope.tracing.modules import lifted_model

    return lifted_model(load_model(target, request))
