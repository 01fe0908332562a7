"""`main` starts and ends the program: it guards against signals before anything slow is imported.

Importing JAX takes half a second, in which Ctrl-C would become an `ImportError` or be swallowed by a callback. So the
signal handlers are installed first. Only the standard streams are opened before: the socket of the handlers would
otherwise get the descriptor of a stream that is closed.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import NoReturn

from gradscope.cli.interrupts import Interrupts
from gradscope.cli.standard_streams import open_streams


def main() -> NoReturn:
    """Runs the command line and exit."""
    open_streams()
    with Interrupts() as interrupts:
        from gradscope.cli.error_boundary import guarded

        sys.exit(guarded(partial(_run, interrupts), sys.argv[1:]))


def _run(interrupts: Interrupts) -> int:
    from gradscope.cli.program import run

    return run(interrupts)
