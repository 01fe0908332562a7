"""Model options state which model runs, on which batch and in which precision."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gradscope.cli.options.shared import is_place, location_from_start, require_one_of
from gradscope.errors import UsageError

if TYPE_CHECKING:
    from gradscope.capturing.execution.arguments import Arguments
    from gradscope.dump.record import Json
    from gradscope.frameworks.modules.request import Request
    from gradscope.tracing.data.renaming.checkpoint_request import CheckpointRequest
    from gradscope.tracing.loading.batches import DataRequest
    from gradscope.tracing.loading.model import Model

_PANEL = "Model"

#: JAX accepts seeds from minus this number to one less than this number.
_SEEDS = 1 << 63


class Precision(StrEnum):
    """A `Precision` of matrix multiplication is one that JAX has on every backend."""

    DEFAULT = "default"
    HIGH = "high"
    HIGHEST = "highest"
    BFLOAT16 = "bfloat16"
    TENSORFLOAT32 = "tensorfloat32"
    FLOAT32 = "float32"


class FloatType(StrEnum):
    """A `FloatType` is a floating-point type in which a model can run."""

    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"
    FLOAT64 = "float64"


class LossName(StrEnum):
    """A `LossName` is a loss that can be computed from the outputs of a framework's module."""

    CROSS_ENTROPY = "cross-entropy"
    MSE = "mse"
    SUM = "sum"
    MEAN = "mean"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """`ModelOptions` have a field for each option of that name, None where it is not set."""

    seed: Annotated[
        int, typer.Option(metavar="N", help="Seed of the keys that init and batch receive.", rich_help_panel=_PANEL)
    ] = 0
    batch_size: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Number of examples; by default that of the model's batch.", rich_help_panel=_PANEL
        ),
    ] = None
    data: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|PLACE:NAME",
            help="A real batch: an .npz, .npy or .safetensors file, or an input pipeline module:NAME or data.py:NAME.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    batch_index: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="N", help="Which batch of the pipeline; by default the first, 0.", rich_help_panel=_PANEL
        ),
    ] = None
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Saved variables: .npz, .safetensors, .msgpack (Flax), .eqx, .keras, .weights.h5, an Orbax folder, "
            "a dump.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    map_keys: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Rename the checkpoint's tensors: lines of REGEX -> REPLACEMENT, applied in order.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    map_file: Annotated[
        Path | None,
        typer.Option(
            "--map",
            metavar="FILE",
            help="Make variables of the checkpoint's tensors by rules in TOML, as compare --map does: transpose, "
            "reshape, split, stack.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    keep_init: Annotated[
        list[str],
        typer.Option(
            metavar="PATTERN",
            help="Variables that stay as init makes them, as a new head: a glob, or re:REGEX. Repeatable.",
            rich_help_panel=_PANEL,
        ),
    ] = field(default_factory=list[str])
    inputs: Annotated[
        list[str],
        typer.Option(
            "--input",
            metavar="SPEC",
            help="An input of a module, such as float32[8,784]; with name and values, such as ids=int32[8,128]:0..9. "
            "Repeatable.",
            rich_help_panel=_PANEL,
        ),
    ] = field(default_factory=list[str])
    loss: Annotated[
        LossName | None,
        typer.Option(
            metavar="NAME",
            help=f"The loss of a module's outputs: {', '.join(LossName)}; by default mse.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    train: Annotated[
        bool | None,
        typer.Option(
            "--train/--eval",
            help="Run the model in training mode or in evaluation mode; by default in training mode.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    dtype: Annotated[
        FloatType | None,
        typer.Option(
            metavar="TYPE",
            help=f"Convert floating-point variables and batch to it: {', '.join(FloatType)}.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    x64: Annotated[bool, typer.Option("--x64", help="Compute in float64.", rich_help_panel=_PANEL)] = False
    matmul_precision: Annotated[
        Precision | None,
        typer.Option(
            metavar="NAME", help=f"Precision of matrix multiplications: {', '.join(Precision)}.", rich_help_panel=_PANEL
        ),
    ] = None

    def request(self, target: str) -> Request:
        """Returns the request for a target's model, and checks the options before JAX is imported.

        Args:
            target: The target.

        Returns:
            The request.

        Raises:
            UsageError: The target or an input is not of the right form, or options contradict each other or need
                another option.
            DumpError: The data file cannot be read.
        """
        from gradscope.frameworks.modules.input_spec import parse_input
        from gradscope.frameworks.modules.request import Request
        from gradscope.tracing.data.data_shapes import data_shapes
        from gradscope.tracing.loading.target import parse_target

        require_one_of(batch_size=self.batch_size, data=self.data)
        _require_together(self.batch_index, self.data, "--batch-index", "--data")
        _require_together(self.map_keys, self.checkpoint, "--map-keys", "--checkpoint")
        _require_together(self.map_file, self.checkpoint, "--map", "--checkpoint")
        _require_together(self.keep_init or None, self.checkpoint, "--keep-init", "--checkpoint")
        parse_target(target)
        if not -_SEEDS <= self.seed < _SEEDS:
            raise UsageError(f"--seed {self.seed} does not fit into 64 bits")
        return Request(
            inputs=tuple(map(parse_input, self.inputs)),
            loss=None if self.loss is None else self.loss.value,
            train=self.train,
            seed=self.seed,
            batch_size=self.batch_size,
            data={} if self._data_file is None else data_shapes(self._data_file),
            data_is_array=self._data_file is not None and self._data_file.suffix == ".npy",
            checkpoint=self.checkpoint,
        )

    def model(self, target: str, request: Request) -> Model:
        """Returns the model that a target names, ready to run.

        Args:
            target: The target.
            request: The request for its model.

        Returns:
            The model. Where the batch comes from an input pipeline, it has the batch, which was read for its shapes.

        Raises:
            UsageError: There is no such file, module or name, or the model does not accept the request.
            ModelError: The file does not import, or the name is not a model's; or the pipeline failed.
        """
        from gradscope.tracing.data.data_shapes import array_shapes
        from gradscope.tracing.debug_flags import turn_debug_flags_off
        from gradscope.tracing.loading.batches import pipeline_leaves
        from gradscope.tracing.loading.loader import load_model
        from gradscope.tracing.loading.module_models import with_array_variables

        pipeline = self.data if self._data_file is None else None
        leaves = None if pipeline is None else pipeline_leaves(pipeline, self.batch_index, self.seed)
        request = request if leaves is None else replace(request, data=array_shapes(leaves))
        model = with_array_variables(load_model(target, request))
        turn_debug_flags_off()  # the model's file may have turned them on again
        return model if leaves is None else replace(model, data=leaves)

    def arguments(self, model: Model, *, dtype: str | None = None, partial: bool = False) -> Arguments:
        """Returns the arguments of a model's loss.

        Args:
            model: The model.
            partial: Whether the data may lack leaves of the batch, because only some values are requested.
            dtype: Floating-point leaves are converted to it; None for the type of `--dtype`.

        Returns:
            The arguments.

        Raises:
            ModelError: `init` or `batch` failed.
            UsageError: A line of the key map is no rule.
            DumpError: The files do not contain variables and a batch such as the model's own.
        """
        from gradscope.capturing.execution.arguments import model_arguments

        return model_arguments(
            model,
            seed=self.seed,
            batch_size=self.batch_size,
            dtype=dtype or (None if self.dtype is None else self.dtype.value),
            data=self._data_request(model, partial=partial),
            checkpoint=self._checkpoint_request(),
        )

    def facts(self, arguments: Arguments) -> dict[str, Json]:
        """Returns the provenance that is needed to run the model again, with files named without their folders."""
        options: dict[str, Json] = {
            "checkpoint": self.checkpoint and self.checkpoint.name,
            "data": self.data and Path(self.data).name,
            "batch_index": self.batch_index,
            "loss": self.loss and self.loss.value,
            "train": self.train,
            "dtype": self.dtype and self.dtype.value,
        }
        facts = {name: value for name, value in options.items() if value is not None}
        return {"seed": self.seed, "batch_size": arguments.batch_size, **facts}

    @property
    def data_location(self) -> str | None:
        """What `--data` named at the start; None where it is not set."""
        return None if self.data is None else location_from_start(self.data)

    @property
    def input_files(self) -> tuple[Path, ...]:
        """The files that the options name."""
        return tuple(filter(None, (self._data_file, self.checkpoint, self.map_keys, self.map_file)))

    @property
    def _data_file(self) -> Path | None:
        """The file or folder that `--data` names; None where it names none, or an input pipeline."""
        return None if self.data is None or is_place(self.data) else Path(self.data)

    def _data_request(self, model: Model, *, partial: bool) -> DataRequest | None:
        from gradscope.tracing.loading.batches import DataRequest

        if (location := self.data_location) is None:
            return None
        return DataRequest(location=location, index=self.batch_index, leaves=model.data, partial=partial)

    def _checkpoint_request(self) -> CheckpointRequest | None:
        from gradscope.cli.options.checkpoint_options import checkpoint_request

        if self.checkpoint is None:
            return None
        return checkpoint_request(self.checkpoint, self.map_keys, self.map_file, self.keep_init)


def _require_together(value: object, needed: object, name: str, needed_name: str) -> None:
    """Raises `UsageError` where an option is set without the option that it needs."""
    if value is not None and needed is None:
        raise UsageError(f"{name} without {needed_name} has no meaning", hint=f"add {needed_name}")
