"""`gradscope recover` saves what an interrupted run had finished."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gradscope.cli.options import shared as options
from gradscope.cli.running.blas import keep_single_threaded

if TYPE_CHECKING:
    from gradscope.dump.recover import Recovery


def recover(
    partial: Annotated[Path, typer.Argument(metavar="PARTIAL", help="The .partial file that a killed run left.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE.npz", help="The file for the complete tensors.")
    ],
    force: options.Force = False,
) -> None:
    """Save the tensors that a killed run had finished."""
    keep_single_threaded()
    from gradscope.cli.printing import print_line
    from gradscope.dump.recover import recover as recovered

    print_line(f"{output}: {_sentence(partial, recovered(partial, output, force=force))}")


def _sentence(partial: Path, found: Recovery) -> str:
    saved = f"{found.tensors:,} tensors ({found.size_bytes:,} bytes) saved"
    if found.was_whole:
        return f"{saved}; {partial} is a whole dump, which also has their statistics: nothing of it was lost"
    behind = f"{found.lost_bytes:,} bytes after them are not a complete tensor" if found.lost_bytes else ""
    return "; ".join(filter(None, (saved, behind)))
