"""Options that several commands share, as annotated types: the name, the help and the check of each stand here once."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, TypeAlias

import typer

_SHOWN = "What is shown"
_OUTPUT = "Output"

Target: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="The model: a file model.py or model.py:NAME, a module package.module:NAME, or a name of the zoo "
        "(resnet50, mlp, transformer, linear_regression). NAME may be a call with literal arguments, and a module of a "
        "framework, given its --input.",
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
    typer.Option(metavar="LIST", help="Exit 1 if one of these findings is made, or 'all'.", rich_help_panel=_SHOWN),
]
Sort: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="COLUMN", help="Sort rows by this column, -COLUMN for largest first.", rich_help_panel=_SHOWN),
]
NoFold: TypeAlias = Annotated[
    bool, typer.Option("--no-fold", help="On a terminal, a line for every turn of a loop.", rich_help_panel=_SHOWN)
]
Force: TypeAlias = Annotated[
    bool, typer.Option("--force", help="Replace an output that exists.", rich_help_panel=_OUTPUT)
]
PerExample: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--per-example",
        help="Also the gradients of each example alone, a batch of one; compare then tells random error from bias.",
        rich_help_panel=_SHOWN,
    ),
]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Short for --format json.", rich_help_panel=_OUTPUT)]
Quiet: TypeAlias = Annotated[
    bool, typer.Option("--quiet", "-q", help="No progress and no messages.", rich_help_panel=_OUTPUT)
]
Verbose: TypeAlias = Annotated[
    bool, typer.Option("--verbose", "-v", help="Say why each thing was chosen.", rich_help_panel=_OUTPUT)
]
Traceback: TypeAlias = Annotated[
    bool, typer.Option("--traceback", help="Show the full traceback of an error.", rich_help_panel=_OUTPUT)
]


def require_one_of(**values: object) -> None:
    """Refuse options that contradict each other.

    Args:
        values: What was given to them; None or False where nothing was.

    Raises:
        UsageError: More than one was given.
    """
    from gradscope.errors import UsageError

    given = [f"--{name.replace('_', '-')}" for name, value in values.items() if value not in (None, False)]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} contradict each other", hint="give one of them")


def listed(text: str, known: Collection[str], kind: str) -> frozenset[str]:
    """The names in an option's comma-separated list.

    Args:
        text: The list.
        known: The names there are.
        kind: What they are names of.

    Raises:
        UsageError: It names nothing, or something that is not known.
    """
    from gradscope.errors import UsageError
    from gradscope.naming.patterns import nearest_hint

    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise UsageError(f"there is no {kind} {name!r}", hint=nearest_hint(name, list(known)))
    if not names:
        raise UsageError(f"the list of {kind} names is empty", hint=f"there are {', '.join(known)}")
    return frozenset(names)
