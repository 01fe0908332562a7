"""`gradscope verify` reads a dump completely and checks it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradscope.cli.blas import keep_single_threaded
from gradscope.cli.commands.show import Dump

if TYPE_CHECKING:
    from gradscope.dump.verify import Verification


def verify(dump: Dump) -> None:
    """Read everything in a dump and check it, with every CRC."""
    keep_single_threaded()
    from gradscope.cli.printing import print_line
    from gradscope.dump.verify import verify as verified

    print_line(f"{dump}: {_sentence(verified(dump))}")


def _sentence(found: Verification) -> str:
    facts = [f"whole: {found.tensors:,} tensors ({found.size_bytes:,} bytes) read and checked"]
    facts += ["the run that wrote it did not finish"] * (not found.complete)
    return "; ".join([*facts, *filter(None, [found.note])])
