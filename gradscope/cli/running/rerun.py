"""Rerunning makes the model of a saved dump again, for `compare --isolate` and `gradscope isolate`."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from gradscope.cli.options.model_options import FloatType, LossName, ModelOptions, Precision

if TYPE_CHECKING:
    from gradscope.dump.record import Json
    from gradscope.tracing.loading.model import Model

_Choice = TypeVar("_Choice", bound=StrEnum)


def options_of(path: Path, provenance: Mapping[str, Json]) -> ModelOptions:
    """Returns the options with which a dump was made, as far as its provenance has them; its inputs are the batch.

    Args:
        path: The dump.
        provenance: The provenance of its run.

    Returns:
        The options.
    """
    seed, train = provenance.get("seed"), provenance.get("train")
    return ModelOptions(
        seed=seed if isinstance(seed, int) else 0,
        data=str(path),
        loss=_choice(LossName, provenance.get("loss")),
        train=train if isinstance(train, bool) else None,
        dtype=_choice(FloatType, provenance.get("dtype")),
        x64=provenance.get("x64") is True,
        matmul_precision=_choice(Precision, provenance.get("matmul_precision")),
    )


def rerun_model(target: str, options: ModelOptions) -> Model:
    """Returns the model that a target names, with JAX set up as it was for the dump.

    Args:
        target: The target.
        options: The options of the dump's run.

    Returns:
        The model.

    Raises:
        UsageError: The target is not of the right form, or there is no such model.
        ModelError: The file does not import, or the name is not a model's.
        MachineError: JAX cannot be used here.
    """
    from gradscope.cli.printing import say
    from gradscope.cli.running.starting_jax.jax_setup import set_up_jax

    request = options.request(target)
    for note in set_up_jax(options, (target, "isolate")):
        say(note)
    return options.model(target, request)


def _choice(choices: type[_Choice], value: Json) -> _Choice | None:
    return next((choice for choice in choices if choice.value == value), None)
