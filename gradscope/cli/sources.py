"""Where a model's variables and batch come from, as the command line says it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from gradscope.cli.options import require_one_of

if TYPE_CHECKING:
    from gradscope.dump.record import Json
    from gradscope.tracing.batches import DataRequest
    from gradscope.tracing.checkpoints import CheckpointRequest

_PANEL = "Model"

Data: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|PLACE:NAME",
        help="A real batch: an .npz, .npy or .safetensors file, or an input pipeline module:NAME or data.py:NAME.",
        rich_help_panel=_PANEL,
    ),
]
BatchIndex: TypeAlias = Annotated[
    int | None,
    typer.Option(min=0, help="Which batch of the pipeline, from 0; by default the first.", rich_help_panel=_PANEL),
]
Checkpoint: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Saved variables: .npz, .safetensors, .msgpack (Flax), .eqx, .keras, .weights.h5, Orbax' folder, a dump.",
        rich_help_panel=_PANEL,
    ),
]
MapKeys: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Renames the checkpoint's tensors: lines of REGEX -> REPLACEMENT, one after the other.",
        rich_help_panel=_PANEL,
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """The options of those names, None where they are not given."""

    batch_size: int | None
    data: str | None
    batch_index: int | None
    checkpoint: Path | None
    map_keys: Path | None

    def require_sense(self) -> None:
        """Refuse options that contradict each other or mean nothing alone; needs no JAX.

        Raises:
            UsageError: There are such.
        """
        require_one_of(batch_size=self.batch_size, data=self.data)
        _require_together(self.batch_index, self.data, "--batch-index", "--data")
        _require_together(self.map_keys, self.checkpoint, "--map-keys", "--checkpoint")

    @property
    def data_file(self) -> Path | None:
        """The file or folder that `--data` names; None where it names none, but a pipeline."""
        return None if self.data is None or (":" in self.data and not Path(self.data).exists()) else Path(self.data)

    def data_request(self) -> DataRequest | None:
        """Which batch is asked for; None for the model's own."""
        from gradscope.tracing.batches import DataRequest

        return None if self.data is None else DataRequest(place=self.data, index=self.batch_index)

    def checkpoint_request(self) -> CheckpointRequest | None:
        """Which variables are asked for; None for those that `init` makes.

        Raises:
            DumpError: The key map cannot be read.
            UsageError: A line of it is no rule.
        """
        from gradscope.tracing.checkpoints import CheckpointRequest
        from gradscope.tracing.keymap import KeyMap, read_key_map

        if self.checkpoint is None:
            return None
        key_map = KeyMap() if self.map_keys is None else read_key_map(self.map_keys)
        return CheckpointRequest(path=self.checkpoint, key_map=key_map)

    def facts(self) -> dict[str, Json]:
        """What provenance says of them, files without their folders."""
        named: dict[str, Json] = {
            "checkpoint": self.checkpoint and self.checkpoint.name,
            "data": self.data and Path(self.data).name,
            "batch_index": self.batch_index,
        }
        return {name: value for name, value in named.items() if value is not None}


def _require_together(value: object, needed: object, name: str, needed_name: str) -> None:
    """Refuse an option that means nothing without another."""
    from gradscope.errors import UsageError

    if value is not None and needed is None:
        raise UsageError(f"{name} without {needed_name} means nothing", hint=f"add {needed_name}")
