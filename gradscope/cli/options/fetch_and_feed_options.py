"""Query options request other gradients and values than the loss's own, or run only a part of the model.

They are `--of`, `--wrt`, `--cotangent`, `--stop-gradient`, `--fetch` and `--feed`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

if TYPE_CHECKING:
    from pathlib import Path

    from gradscope.dump.record import Json
    from gradscope.instrument.query.trace_query import TraceQuery
    from gradscope.naming import Selection

_PANEL = "Gradients and values other than the loss's own"

#: The options that change what runs, by their fields. `--wrt` and `--cotangent` only refine them.
QUERY_OPTIONS: Final = ("of", "stop_gradient", "fetch", "feed")

#: The value of `--cotangent` that needs no file.
ONES: Final = "ones"


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchOptions:
    """`FetchOptions` have a field for each of `--fetch` and `--feed`, empty where it is not set."""

    fetch: Annotated[
        list[str],
        typer.Option(
            metavar="NAME",
            help="Run only the operations that this value needs; gradient/NAME for the gradient that arrives at it. "
            "Repeatable.",
            rich_help_panel=_PANEL,
        ),
    ] = field(default_factory=list[str])
    feed: Annotated[
        list[str],
        typer.Option(
            metavar="NAME=FILE[:KEY]",
            help="Replace a value by a tensor; with gradient/NAME, replace the gradient that arrives at it. "
            "Repeatable.",
            rich_help_panel=_PANEL,
        ),
    ] = field(default_factory=list[str])

    def trace_query(self) -> TraceQuery:
        """Returns the query of these options, with the tensors of the files that they name.

        Raises:
            UsageError: A `--feed` is not of its form.
            DumpError: A file cannot be read.
        """
        from gradscope.instrument.query.trace_query import TraceQuery

        return TraceQuery(feeds=dict(map(_fed, self.feed)), fetches=tuple(self.fetch))


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryOptions(FetchOptions):
    """`QueryOptions` have a field for each option of that name, empty where it is not set."""

    of: Annotated[
        list[str],
        typer.Option(
            metavar="NAME", help="Differentiate this in place of the loss. Repeatable.", rich_help_panel=_PANEL
        ),
    ] = field(default_factory=list[str])
    wrt: Annotated[
        list[str],
        typer.Option(
            metavar="PATTERN", help="Only gradients with respect to these. Repeatable.", rich_help_panel=_PANEL
        ),
    ] = field(default_factory=list[str])
    cotangent: Annotated[
        list[str],
        typer.Option(
            metavar="FILE[:KEY]|ones",
            help="The initial gradient of each --of, in order; ones by default.",
            rich_help_panel=_PANEL,
        ),
    ] = field(default_factory=list[str])
    stop_gradient: Annotated[
        list[str],
        typer.Option(metavar="NAME", help="Treat this as a constant. Repeatable.", rich_help_panel=_PANEL),
    ] = field(default_factory=list[str])

    @property
    def input_files(self) -> tuple[Path, ...]:
        """The files that the options name."""
        from gradscope.tracing.data.single_tensors import file_of

        spellings = [*(each.partition("=")[2] for each in self.feed), *self.cotangent]
        return tuple(file_of(each) for each in spellings if each and each != ONES)

    def wrt_selection(self) -> Selection | None:
        """Returns the selection of `--wrt`; None where it is not set.

        Raises:
            UsageError: A pattern is not one.
        """
        from gradscope.naming import Selection

        return Selection.parse(self.wrt) if self.wrt else None

    def trace_query(self) -> TraceQuery:
        """Returns the query of these options, with the tensors of the files that they name.

        Raises:
            UsageError: An option is not of its form, or there are more initial gradients than values to differentiate.
            DumpError: A file cannot be read.
        """
        from gradscope.errors import UsageError

        if len(self.cotangent) > len(self.of):
            raise UsageError(
                f"--cotangent is given {len(self.cotangent)} times and --of {len(self.of)} times",
                hint="each initial gradient belongs to one --of",
            )
        initial = [*map(_initial, self.cotangent), *[None] * (len(self.of) - len(self.cotangent))]
        return replace(
            FetchOptions.trace_query(self),  # slots rule out a plain super()
            of=tuple(self.of),
            cotangents=tuple(initial),
            stops=tuple(self.stop_gradient),
        )


def _initial(spelling: str) -> Any:
    from gradscope.tracing.data.single_tensors import tensor_from_file

    return None if spelling == ONES else tensor_from_file(spelling)


def _fed(spelling: str) -> tuple[str, Any]:
    from gradscope.errors import UsageError
    from gradscope.tracing.data.single_tensors import tensor_from_file

    name, equals, file = spelling.partition("=")
    if not (name and equals and file):
        raise UsageError(f"--feed {spelling} is not of the form NAME=FILE", hint="--feed encoder/out=out.npy, say")
    return name, tensor_from_file(file)


def pruned_sentences(provenance: Mapping[str, Json]) -> tuple[str, ...]:
    """Returns a message about the part of the program that was run, where it was not all of it."""
    from gradscope.presentation.reports.inspection import pruned_sentence

    match provenance.get("fragment"):
        case {"needed": int(needed), "total": int(total)} as fragment if needed < total:
            return (pruned_sentence(fragment),)
        case _:
            return ()
