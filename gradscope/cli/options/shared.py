"""Several commands share these single options, as annotated types with name, help and check."""

from __future__ import annotations

import os
from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from gradscope.cli.options import completion

_SHOWN = "What is shown"
_OUTPUT = "Output"

Target: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        autocompletion=completion.zoo_models,
        help="The model: a file model.py or model.py:NAME, a module package.module:NAME, or a name of the zoo "
        "(resnet50, mlp, transformer, linear_regression). NAME may be a call with literal arguments, or a module of a "
        "framework together with --input.",
    ),
]
NoCache: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--no-cache", help="Do not keep compiled programs in the user's cache folder.", rich_help_panel="Model"
    ),
]
Check: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="LIST",
        help="Exit 1 on any of these findings, or on any at all with 'all'; on what may be meant (softmax, clipped, "
        "dropped, rectified, squashed, unscaled, 'no effect') where it is named. Of a run, on alarms and faults of its "
        "loss (broadcast, saturated); on what may be meant (climbing, learning, unchanged, rounded, rectified, "
        "squashed, softmax, evaluation, repeated, stale, misapplied, sorted and others) where it is named. gradscope "
        "explain says what each is.",
        autocompletion=completion.finding_names,
        rich_help_panel=_SHOWN,
    ),
]
Sort: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN",
        help="Sort rows by this column, -COLUMN for largest first; gradscope explain says what each is.",
        autocompletion=completion.column_names,
        rich_help_panel=_SHOWN,
    ),
]
NoFold: TypeAlias = Annotated[
    bool,
    typer.Option("--no-fold", help="On a terminal, a line for every iteration of a loop.", rich_help_panel=_SHOWN),
]
Full: TypeAlias = Annotated[
    bool,
    typer.Option("--full", help="On a terminal, every row, and not an overview of one screen.", rich_help_panel=_SHOWN),
]
Force: TypeAlias = Annotated[
    bool, typer.Option("--force", help="Replace an output that exists.", rich_help_panel=_OUTPUT)
]
PerExample: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--per-example",
        help="Also the gradients of each example as a batch of one; compare then separates random error from bias.",
        rich_help_panel=_SHOWN,
    ),
]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Short for --format json.", rich_help_panel=_OUTPUT)]
Quiet: TypeAlias = Annotated[
    bool,
    typer.Option("--quiet", "-q", help="Print no progress and no messages; results stay.", rich_help_panel=_OUTPUT),
]
Verbose: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--verbose", "-v", help="Print the reason for each choice that gradscope made.", rich_help_panel=_OUTPUT
    ),
]
Traceback: TypeAlias = Annotated[
    bool, typer.Option("--traceback", help="Show the full traceback of an error.", rich_help_panel=_OUTPUT)
]


#: The working directory when the command line was read. A model may change it, and what the options name stays.
_start: ContextVar[Path | None] = ContextVar("_start", default=None)


def remember_start() -> None:
    """Remembers the working directory, before anything else of the command runs."""
    try:
        _start.set(Path.cwd())
    except OSError:  # it has been removed: no relative path names anything
        _start.set(None)


def from_start(path: Path) -> Path:
    """Returns a path that names now what a path named at the start: the path itself where nobody changed directory."""
    start = _start.get()
    try:
        here = start is None or path.is_absolute() or Path.cwd() == start
    except OSError:
        here = False
    return path if here or start is None else start / path


@contextmanager
def working_in(start: Path) -> Generator[None]:
    """Works in a folder inside a `with` statement, and then in the one before, unless the model has removed that."""
    try:
        before = Path.cwd()
    except OSError:
        before = start
    os.chdir(start)
    try:
        yield
    finally:
        os.chdir(before)


def is_place(text: str) -> bool:
    """Returns whether a text names an object in a file or module, `data.py:NAME`, and no file."""
    return ":" in text and not from_start(Path(text)).exists()


def location_from_start(text: str) -> str:
    """Returns a text that names now the file, or the object in a file or module, that a text named at the start."""
    place, _, name = text.rpartition(":")
    if not is_place(text):
        return str(from_start(Path(text)))
    return f"{from_start(Path(place))}:{name}" if place.endswith(".py") else text


def require_one_of(**values: object) -> None:
    """Raises `UsageError` where more than one of some options is set.

    Args:
        values: Their values; None or False where one is not set.

    Raises:
        UsageError: More than one is set.
    """
    from gradscope.errors import UsageError

    names = [f"--{name.replace('_', '-')}" for name, value in values.items() if value not in (None, False)]
    if len(names) > 1:
        raise UsageError(f"{' and '.join(names)} contradict each other", hint="give one of them")


def require_compatible(excluded: Mapping[str, Collection[str]], *groups: Any) -> None:
    """Raises `UsageError` where an option is set together with one that it excludes.

    Args:
        excluded: By option, the options that it excludes.
        groups: The groups that have these options as fields.

    Raises:
        UsageError: Two options contradict each other.
    """
    values = {field.name: getattr(group, field.name) or None for group in groups for field in fields(group)}
    for option, others in excluded.items():
        for other in others:
            require_one_of(**{option: values[option], other: values[other]})


def listed(text: str, known: Collection[str], kind: str) -> frozenset[str]:
    """Returns the names in an option's comma-separated list.

    Args:
        text: The list.
        known: The names that are allowed.
        kind: What the names are names of, for messages.

    Returns:
        The names.

    Raises:
        UsageError: It names nothing, or something that is not known.
    """
    from gradscope.errors import UsageError
    from gradscope.naming.selecting.nearest_names import did_you_mean, nearest

    every = f"there are {', '.join(known)}"
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in known:
            near = nearest(name, list(known))
            raise UsageError(f"there is no {kind} {name!r}", hint=did_you_mean(near) if near else every)
    if not names:
        raise UsageError(f"the list of {kind} names is empty", hint=every)
    return frozenset(names)
