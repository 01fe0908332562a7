"""`main` starts and ends the program: it guards against signals before anything slow is imported.

Importing JAX takes half a second, in which Ctrl-C would become an `ImportError` or be swallowed by a callback. So the
signal handlers are installed first. Only the standard streams are opened before, because the socket of the handlers
would otherwise get the descriptor of a stream that is closed; and a command that runs a model gets its supervisor.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import NoReturn

from gradscope.cli.interrupts import Interrupts
from gradscope.cli.leaving import leave, leave_at_once, leave_behind_the_last, leave_threads
from gradscope.cli.running.joining import leave_failed
from gradscope.cli.running.supervisor import runs_model, supervise
from gradscope.cli.running.version import VERSION_OPTIONS, print_version
from gradscope.cli.standard_streams import keep_stdout_for_results, open_streams


def command() -> NoReturn:
    """Runs the command line in a process of its own: the script `gradscope`."""
    main(own_process=True)


def main(*, own_process: bool = False) -> NoReturn:
    """Runs the command line and exits.

    Args:
        own_process: Whether the process ends with the command line, and may leave without giving back what it has. A
            program that catches `SystemExit` goes on.
    """
    open_streams()
    ends_with = None
    if runs_model(sys.argv[1:]):
        ends_with = supervise()
        if own_process:
            leave_behind_the_last()
        keep_stdout_for_results()
    elif own_process and sys.argv[1:2] != ["watch"]:  # which goes on for days
        leave_at_once()
    with Interrupts(ends_with) as interrupts:
        from gradscope.cli.error_boundary import guarded

        status = guarded(partial(_run, interrupts), sys.argv[1:])
        if ends_with is not None:
            ends_with(status)
            leave_failed(status)
            if own_process:
                leave_threads(status)
            sys.stdout = sys.stderr  # what the model registered with atexit prints no result
        leave(status)


def _run(interrupts: Interrupts) -> int:
    if sys.argv[1:2] and sys.argv[1] in VERSION_OPTIONS:
        print_version()
        return 0
    from gradscope.cli.program import run

    return run(interrupts)
