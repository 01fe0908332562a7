"""`--of`, `--cotangent`, `--stop-gradient`, `--fetch` and `--feed`: what is asked beyond the loss and its gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from gradscope.dump.record import Json
    from gradscope.instrument.inquiry import Inquiry

#: The initial gradient that needs no file.
ONES: Final = "ones"


def inquiry_of(
    *,
    of: Sequence[str],
    cotangent: Sequence[str],
    stop_gradient: Sequence[str],
    fetch: Sequence[str],
    feed: Sequence[str],
) -> Inquiry:
    """The inquiry that options make; reads the files that they name.

    Raises:
        UsageError: An option is not of its form, or there are more initial gradients than values to differentiate.
        DumpError: A file cannot be read.
    """
    from gradscope.errors import UsageError
    from gradscope.instrument.inquiry import Inquiry

    if len(cotangent) > len(of):
        raise UsageError(
            f"--cotangent is given {len(cotangent)} times and --of {len(of)} times",
            hint="an initial gradient belongs to what --of differentiates",
        )
    initial = [*map(_initial, cotangent), *[None] * (len(of) - len(cotangent))]
    return Inquiry(
        of=tuple(of),
        cotangents=tuple(initial),
        stops=tuple(stop_gradient),
        feeds=dict(map(_fed, feed)),
        fetches=tuple(fetch),
    )


def _initial(spelling: str) -> Any:
    from gradscope.tracing.tensors import tensor_from_file

    return None if spelling == ONES else tensor_from_file(spelling)


def _fed(spelling: str) -> tuple[str, Any]:
    from gradscope.errors import UsageError
    from gradscope.tracing.tensors import tensor_from_file

    name, equals, file = spelling.partition("=")
    if not (name and equals and file):
        raise UsageError(f"--feed {spelling} is not of the form NAME=FILE", hint="--feed encoder/out=out.npy, say")
    return name, tensor_from_file(file)


def fragment_sentences(provenance: Mapping[str, Json]) -> tuple[str, ...]:
    """What part of the program was run, where it was a part."""
    match provenance.get("fragment"):
        case {"needed": int(needed), "total": int(total), "inputs": list(inputs)} if needed < total:
            names = ", ".join(map(str, inputs)) or "none"
            return (f"{needed:,} of {total:,} operations were run; inputs needed: {names}",)
        case _:
            return ()
