"""`gradscope verify`: is a dump whole?"""

from __future__ import annotations

from gradscope.cli import options
from gradscope.cli.show import Dump


def verify(dump: Dump, traceback: options.Traceback = False) -> None:  # noqa: ARG001 - the error boundary reads it
    """Read everything in a dump and check it, every CRC included."""
    from gradscope.cli.printing import print_plain
    from gradscope.dump.verify import verify as verified
    from gradscope.naming import printable

    found = verified(dump)
    print_plain(f"{printable(str(dump))}: {found}\n")
