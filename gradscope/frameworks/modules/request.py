"""What a user says about a framework's module: the part of a model that a file of functions would say itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from gradscope.frameworks.modules.input_spec import InputSpec

#: What can be made of a module's outputs; see `gradscope.frameworks.modules.losses`.
LossName: TypeAlias = Literal["cross-entropy", "mse", "sum", "mean"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request.

    Attributes:
        inputs: What the module is called with, in the order given.
        loss: What is made of its outputs; None for the default.
        train: Whether it runs as in training; None for the default, which is yes.
        seed: Seeds what a module draws when it is built.
        batch_size: Number of examples; None for what the inputs say.
        data: The tensors of a real batch by name, which describe the inputs where `inputs` does not.
        checkpoint: Where its variables are; None for those that it holds or draws.
    """

    inputs: tuple[InputSpec, ...] = ()
    loss: LossName | None = None
    train: bool | None = None
    seed: int = 0
    batch_size: int | None = None
    data: Mapping[str, InputSpec] = field(default_factory=dict[str, InputSpec])
    checkpoint: Path | None = None
