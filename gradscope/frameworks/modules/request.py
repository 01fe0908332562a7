"""A request has the user's options for a model, most of which a file of functions defines itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from gradscope.frameworks.modules.input_spec import InputSpec

#: The losses of a module's outputs; see `gradscope.frameworks.modules.losses`.
LossName: TypeAlias = Literal["cross-entropy", "mse", "sum", "mean"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A `Request` has the user's options for a model.

    Attributes:
        inputs: The module's inputs, in the given order.
        loss: The loss of its outputs; None for the default.
        train: Whether it runs in training mode; None for the default, which is yes.
        seed: Seeds the random numbers with which a module is built.
        batch_size: Number of examples; None for that of the inputs.
        data: The tensors of a real batch by name, which describe the inputs where `inputs` does not, and the batch of
            a file of functions that has none.
        data_is_array: Whether that batch is its only tensor itself.
        checkpoint: The file of its variables; None for the module's own.
    """

    inputs: tuple[InputSpec, ...] = ()
    loss: LossName | None = None
    train: bool | None = None
    seed: int = 0
    batch_size: int | None = None
    data: Mapping[str, InputSpec] = field(default_factory=dict[str, InputSpec])
    data_is_array: bool = False
    checkpoint: Path | None = None
