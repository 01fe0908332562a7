"""Annotations put what a report says next to the user's source lines, as GitHub shows it in a pull request.

GitHub Actions reads them as commands on standard output, a line each: `::warning file=model.py,line=12::message`.

References:
    https://docs.github.com/en/actions/reference/workflows-and-actions/workflow-commands, whose escapes are those of
    https://github.com/actions/toolkit/blob/main/packages/core/src/command.ts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from gradscope.naming import printable
from gradscope.naming.wording import place_behind


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotation:
    """An `Annotation` is one message about a line of source.

    Attributes:
        level: How severe it is.
        title: A few words.
        message: The message.
        source: `file:line`, the file without its folder; None where unknown.
    """

    level: Literal["error", "warning", "notice"]
    title: str
    message: str
    source: str | None = None


@runtime_checkable
class AnnotatedReport(Protocol):
    """An `AnnotatedReport` is a report that can be shown next to source lines."""

    def annotations(self) -> Sequence[Annotation]:
        """Returns the annotations, the most important first: GitHub shows only ten of a level and step."""
        ...


def annotations_text(annotations: Sequence[Annotation], located: Callable[[str], str | None]) -> str:
    """Returns annotations as commands to GitHub Actions.

    Args:
        annotations: The annotations.
        located: Returns the path of a file in the repository from its name; None where it is not known.

    Returns:
        Lines, each with its line feed. Where a file is not known, the message has the source.
    """
    return "".join(_command(each, located) + "\n" for each in annotations)


def _command(annotation: Annotation, located: Callable[[str], str | None]) -> str:
    file, _, line = (annotation.source or "").rpartition(":")
    path = located(file) if file and line.isdecimal() else None
    properties = {"title": annotation.title}
    message = annotation.message
    if path is not None:
        properties = {"file": path, "line": line, **properties}
    else:
        message += place_behind(message, annotation.source)
    written = ",".join(f"{name}={_property(value)}" for name, value in properties.items())
    return f"::{annotation.level} {written}::{_data(message)}"


def _data(text: str) -> str:
    # A name from a file could otherwise end the line and begin a command of its own.
    return printable(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
