"""`gradscope verify` reads a dump completely and checks it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gradscope.cli.running.blas import keep_single_threaded

if TYPE_CHECKING:
    from gradscope.dump.verify import Verification


def verify(
    dump: Annotated[
        Path, typer.Argument(metavar="DUMP", help="A dump, any .npz, .npy or .safetensors file, or a dump's folder.")
    ],
) -> None:
    """Read everything in a dump and check it, with every CRC."""
    keep_single_threaded()
    from gradscope.cli.printing import print_line
    from gradscope.dump.verify import verify as verified

    print_line(f"{dump}: {_sentence(verified(dump))}")


def _sentence(found: Verification) -> str:
    facts = [f"whole: {found.tensors:,} tensors ({found.size_bytes:,} bytes) read and checked"]
    facts += ["the run that wrote it did not finish"] * (not found.complete)
    return "; ".join([*facts, *filter(None, [found.note])])
