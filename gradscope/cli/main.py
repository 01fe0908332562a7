"""The way in and out: under guard as soon as Python has started, before anything slow is imported.

Importing JAX takes half a second, in which Ctrl-C would become an `ImportError` or be swallowed by a callback. So
signals are taken before anything else but opening the standard streams: what takes them would otherwise get the number
of one that is closed. Only then does the program begin.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import NoReturn

from gradscope.cli.interrupts import Interrupts
from gradscope.cli.standard_streams import open_streams


def main() -> NoReturn:
    """Run the command line and exit."""
    open_streams()
    with Interrupts() as interrupts:
        from gradscope.cli.boundary import guarded

        sys.exit(guarded(partial(_run, interrupts), sys.argv[1:]))


def _run(interrupts: Interrupts) -> int:
    from gradscope.cli.program import run

    return run(interrupts)
