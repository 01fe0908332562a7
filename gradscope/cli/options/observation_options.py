"""`--ops`, `--terms`, `--per-example`: how far inside layers, and into sums of gradients, is looked.

`--ops` may stand alone or before one of its values. Typer knows options with a value and options without, so that a
command spells out the value that was left out before typer reads it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import zip_longest
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from gradscope.cli.options import shared as options

_PANEL = "What is shown"


class Operations(StrEnum):
    """With respect to what of operations there are gradients."""

    OUTPUTS = "outputs"
    INPUTS = "inputs"


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationOptions:
    """The options of those names."""

    ops: Annotated[
        Operations | None,
        typer.Option(
            "--ops",
            metavar="[outputs|inputs]",
            help="Every operation, and not only layers: its output and the gradient of that; with inputs, also what "
            "flows back to each of its inputs through it alone.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    terms: Annotated[
        bool,
        typer.Option(
            "--terms",
            help="For each value that is used several times, what flows back from each use; they sum to its gradient.",
            rich_help_panel=_PANEL,
        ),
    ] = False

    per_example: options.PerExample = False

    @property
    def operations(self) -> bool:
        """Whether every operation is asked for."""
        return self.ops is not None

    @property
    def operands(self) -> bool:
        """Whether what flows back to every operation's inputs is asked for."""
        return self.ops is Operations.INPUTS


class SpelledOut(TyperCommand):
    """A command in which `--ops` may stand alone."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As any command, from arguments that spell the value out."""
        return super().parse_args(ctx, list(_spelled_out(args)))


def _spelled_out(arguments: Sequence[str]) -> Iterator[str]:
    """Arguments of a command line in which every `--ops` before `--` is followed by one of its values."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    values = {each.value for each in Operations}
    for argument, following in zip_longest(arguments[:end], arguments[1:end]):
        yield argument
        if argument == "--ops" and following not in values:
            yield Operations.OUTPUTS.value
    yield from arguments[end:]
