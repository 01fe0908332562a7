"""`gradscope recover` saves what an interrupted run had finished."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gradscope.cli.options import shared as options
from gradscope.cli.running.blas import keep_single_threaded


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

    found = recovered(partial, output, force=force)
    saved = f"{found.tensors:,} tensors ({found.size_bytes:,} bytes) saved"
    print_line(f"{output}: {saved}; {found.lost_bytes:,} bytes after them are not a complete tensor")
