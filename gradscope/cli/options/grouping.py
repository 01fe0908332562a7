"""Grouping lets a command take related options as one dataclass, and `--help` show them under one heading.

Typer reads a command's options from its signature, so commands which share twelve options would each repeat twelve
parameters. Here a command takes the group, and Typer sees a signature with the group's fields in its place.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, Final, get_type_hints

from typer.core import TyperCommand

#: The most columns of an option and its metavar beside what is said of it; in a narrow terminal, two fifths of its own.
_MOST_OPTION_COLUMNS: Final = 30


class GroupedHelpCommand(TyperCommand):
    """A `GroupedHelpCommand` shows its options under the headings of their groups, in lines that fit the terminal."""

    # Typer's own panels have a column for each of four facts, which leaves an explanation 20 of 80 characters. Theirs
    # are also made by rich, whose import takes as long as the rest of `--help`.
    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Writes a section for each heading, in the order in which the first of its options is declared."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            usual = "Arguments" if parameter.param_type_name == "argument" else "Options"
            if record is not None:
                sections.setdefault(getattr(parameter, "rich_help_panel", None) or usual, []).append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records, col_max=min(_MOST_OPTION_COLUMNS, formatter.width * 2 // 5))


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Returns a command for Typer in which each parameter that is a dataclass is replaced by its fields.

    Args:
        command: The command. Every field of its groups has a name that no other parameter has, and a default.

    Returns:
        The command with the signature that Typer reads.
    """
    hints = get_type_hints(command, include_extras=True)
    parameters = inspect.signature(command).parameters
    groups = {name: hints[name] for name in parameters if is_dataclass(hints[name])}

    @functools.wraps(command)
    def called(**values: Any) -> None:
        built = {
            name: group(**{field.name: values.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        command(**values, **built)

    spread = [
        each
        for name, parameter in parameters.items()
        for each in (
            _parameters_of(groups[name])
            if name in groups
            else [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[name])]
        )
    ]
    return with_parameters(called, spread)


def with_parameters(command: Callable[..., None], parameters: Sequence[inspect.Parameter]) -> Callable[..., None]:
    """Returns a command for which Typer reads these parameters in place of its own."""
    vars(command).update(__signature__=inspect.Signature(parameters))
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _parameters_of(group: type) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    for field in fields(group):
        yield inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=_default(field), annotation=hints[field.name]
        )


def _default(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()
