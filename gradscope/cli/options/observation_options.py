"""Observation options (`--ops`, `--terms`, `--per-example`) capture operations inside layers and terms of gradients.

`--ops` may be followed by one of its values or by nothing. Typer knows only options with a value and options without,
so the missing value is inserted before Typer parses the command line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import zip_longest
from typing import Annotated, Any

import typer

from gradscope.cli.options import shared as options
from gradscope.cli.options.grouping import GroupedHelpCommand

_PANEL = "What is shown"


class Operations(StrEnum):
    """`Operations` select values of operations with respect to which gradients are captured."""

    OUTPUTS = "outputs"
    INPUTS = "inputs"


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationOptions:
    """`OperationOptions` have a field for each option of that name."""

    ops: Annotated[
        Operations | None,
        typer.Option(
            "--ops",
            metavar="[outputs|inputs]",
            help="Every operation, and not only layers: its output and the gradient of that; with inputs, also the "
            "gradient that it alone returns to each of its inputs.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    terms: Annotated[
        bool,
        typer.Option(
            "--terms",
            help="For each value that is used several times, the gradient from each use; these sum to its gradient.",
            rich_help_panel=_PANEL,
        ),
    ] = False

    per_example: options.PerExample = False
    source: Annotated[
        bool,
        typer.Option("--source", help="Keep the source lines of layers, for gradscope report.", rich_help_panel=_PANEL),
    ] = False

    @property
    def operations(self) -> bool:
        """True where every operation is captured."""
        return self.ops is not None

    @property
    def operands(self) -> bool:
        """True where the gradients that operations return to their inputs are captured."""
        return self.ops is Operations.INPUTS


class OptionalValueCommand(GroupedHelpCommand):
    """An `OptionalValueCommand` is a command in which `--ops` may come without a value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parses the arguments with the default value inserted after each `--ops` that has none."""
        return super().parse_args(ctx, list(_with_default_values(args)))


def _with_default_values(arguments: Sequence[str]) -> Iterator[str]:
    """Yields the arguments of a command line with a value after every `--ops` that comes before `--`."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    values = {each.value for each in Operations}
    for argument, following in zip_longest(arguments[:end], arguments[1:end]):
        yield argument
        if argument == "--ops" and following not in values:
            yield Operations.OUTPUTS.value
    yield from arguments[end:]
