"""Report options select the rows of a table and the format in which it is written."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from gradscope.cli.options.completion import family_names
from gradscope.cli.options.shared import Json, listed

if TYPE_CHECKING:
    from gradscope.naming import Selection
    from gradscope.presentation import Query

_PANEL = "What is shown"


class Format(StrEnum):
    """A `Format` is one in which results are written."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    MARKDOWN = "markdown"
    GITHUB = "github"


class ComparisonFormat(StrEnum):
    """A `ComparisonFormat` is one in which a comparison is written."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    MARKDOWN = "markdown"
    GITHUB = "github"
    JUNIT = "junit"


def refuse_two_formats(output_format: str, *, json: bool) -> None:
    """Refuses `--json` beside another format.

    Args:
        output_format: The format of `--format`.
        json: Whether `--json` is set.

    Raises:
        UsageError: Both name a format.
    """
    if json and output_format not in (Format.TABLE, Format.JSON):
        from gradscope.errors import UsageError

        raise UsageError(f"--json and --format {output_format} are two formats", hint="name one of them")


@dataclass(frozen=True, slots=True, kw_only=True)
class NameOptions:
    """`NameOptions` select names."""

    select: Annotated[
        list[str],
        typer.Option(
            metavar="PATTERN", help="Only these names: a glob, or re:REGEX. Repeatable.", rich_help_panel=_PANEL
        ),
    ] = field(default_factory=list[str])
    exclude: Annotated[
        list[str], typer.Option(metavar="PATTERN", help="Leave out these names. Repeatable.", rich_help_panel=_PANEL)
    ] = field(default_factory=list[str])

    @property
    def specified(self) -> list[str]:
        """The options that were given, as they are spelled."""
        return [name for name, value in {"--select": self.select, "--exclude": self.exclude}.items() if value]

    def selection(self) -> Selection:
        """Returns the selected names.

        Raises:
            UsageError: A pattern is not one.
        """
        from gradscope.naming import Selection

        return Selection.parse(self.select, self.exclude)


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionOptions(NameOptions):
    """`SelectionOptions` select layers and families of tensors."""

    depth: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Only layers of at most this many scopes.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    families: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            autocompletion=family_names,
            help="Only these: activation, param, input, each also with _grad, example_grad, term, state, aux; of runs "
            "also clipped_grad, update, slot, average.",
            rich_help_panel=_PANEL,
        ),
    ] = None

    def family_set(self) -> frozenset[str] | None:
        """Returns the families of `--families`; None where it is not set.

        Raises:
            UsageError: There is no such family, or none is named.
        """
        from gradscope.naming import FAMILIES, SLOT_PREFIX

        return None if self.families is None else listed(self.families, (*FAMILIES, SLOT_PREFIX), "family")

    @property
    def is_set(self) -> bool:
        """True where any of these options is set: what it selects is then shown in full."""
        return bool(self.select or self.exclude or self.depth is not None or self.families is not None)

    def query(self, sort: str | None) -> Query:
        """Returns the selection as a query to a table.

        Raises:
            UsageError: A pattern is not one, there is no such family, or none is named.
        """
        from gradscope.presentation import Query

        return Query(select=self.select, exclude=self.exclude, families=self.family_set(), depth=self.depth, sort=sort)


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatOptions:
    """`FormatOptions` select the format in which results are written to standard output."""

    output_format: Annotated[
        Format,
        typer.Option(
            "--format",
            metavar="NAME",
            help=f"How results are written to standard output: {', '.join(Format)}.",
            rich_help_panel="Output",
        ),
    ] = Format.TABLE
    json: Json = False

    def __post_init__(self) -> None:
        """Refuses two formats."""
        refuse_two_formats(self.output_format, json=self.json)

    @property
    def chosen(self) -> Format:
        """The selected format, of `--format` or `--json`."""
        return Format.JSON if self.json else self.output_format


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonFormatOptions:
    """`ComparisonFormatOptions` select the format in which a comparison is written to standard output."""

    output_format: Annotated[
        ComparisonFormat,
        typer.Option(
            "--format",
            metavar="NAME",
            help=f"How results are written to standard output: {', '.join(ComparisonFormat)}; the last one has a case "
            "of a test for each tensor.",
            rich_help_panel="Output",
        ),
    ] = ComparisonFormat.TABLE
    json: Json = False

    def __post_init__(self) -> None:
        """Refuses two formats."""
        refuse_two_formats(self.output_format, json=self.json)

    @property
    def chosen(self) -> ComparisonFormat:
        """The selected format, of `--format` or `--json`."""
        return ComparisonFormat.JSON if self.json else self.output_format
