"""`--of`, `--wrt`, `--cotangent`, `--stop-gradient`, `--fetch`, `--feed`: what is asked beyond the loss's gradients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from gradscope.cli.options.shared import require_one_of

if TYPE_CHECKING:
    from gradscope.dump.record import Json
    from gradscope.instrument.query.trace_query import Inquiry

_PANEL = "What is asked"

#: The initial gradient that needs no file.
ONES: Final = "ones"


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentOptions:
    """`--fetch` and `--feed`, empty where they are not given: what is run at all."""

    fetch: Annotated[
        list[str],
        typer.Option(
            metavar="NAME",
            help="Run only what this value needs; gradient/NAME for the gradient that arrives at it. Repeatable.",
            rich_help_panel=_PANEL,
        ),
    ] = field(default_factory=list[str])
    feed: Annotated[
        list[str],
        typer.Option(
            metavar="NAME=FILE[:KEY]",
            help="Put a tensor in the place of a value; of gradient/NAME, of the gradient that arrives at it. "
            "Repeatable.",
            rich_help_panel=_PANEL,
        ),
    ] = field(default_factory=list[str])

    def inquiry(self) -> Inquiry:
        """What they ask; reads the files that they name.

        Raises:
            UsageError: A `--feed` is not of its form.
            DumpError: A file cannot be read.
        """
        from gradscope.instrument.query.trace_query import Inquiry

        return Inquiry(feeds=dict(map(_fed, self.feed)), fetches=tuple(self.fetch))


@dataclass(frozen=True, slots=True, kw_only=True)
class InquiryOptions(FragmentOptions):
    """The options of those names, empty where they are not given."""

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
            help="The initial gradient of an --of, in their order; ones where not given.",
            rich_help_panel=_PANEL,
        ),
    ] = field(default_factory=list[str])
    stop_gradient: Annotated[
        list[str], typer.Option(metavar="NAME", help="This counts as constant. Repeatable.", rich_help_panel=_PANEL)
    ] = field(default_factory=list[str])

    def require_alone(self, **others: object) -> None:
        """Refuse them beside options that are about the loss as it is.

        Raises:
            UsageError: One of these and one of those are given.
        """
        given = {"of": self.of, "stop_gradient": self.stop_gradient, "fetch": self.fetch, "feed": self.feed}
        for name, values in given.items():
            for other, value in others.items():
                require_one_of(**{other: value, name: values or None})

    def inquiry(self) -> Inquiry:
        """What they ask; reads the files that they name.

        Raises:
            UsageError: An option is not of its form, or there are more initial gradients than values to differentiate.
            DumpError: A file cannot be read.
        """
        from gradscope.errors import UsageError

        if len(self.cotangent) > len(self.of):
            raise UsageError(
                f"--cotangent is given {len(self.cotangent)} times and --of {len(self.of)} times",
                hint="an initial gradient belongs to what --of differentiates",
            )
        initial = [*map(_initial, self.cotangent), *[None] * (len(self.of) - len(self.cotangent))]
        return replace(
            FragmentOptions.inquiry(self),  # slots rule out a plain super()
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


def fragment_sentences(provenance: Mapping[str, Json]) -> tuple[str, ...]:
    """What part of the program was run, where it was a part."""
    from gradscope.report.reports.inspection import fragment_sentence

    match provenance.get("fragment"):
        case {"needed": int(needed), "total": int(total)} as fragment if needed < total:
            return (fragment_sentence(fragment),)
        case _:
            return ()
