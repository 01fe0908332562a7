"""`main` starts and ends the program: it guards against signals before anything slow is imported.

Importing JAX takes half a second, in which Ctrl-C would become an `ImportError` or be swallowed by a callback. So the
signal handlers are installed first, and simpler ones before the little that they need is imported. Only the standard
streams are opened before, because the socket of the handlers would otherwise get the descriptor of a stream that is
closed; and a command that runs a model gets its supervisor.
"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, NoReturn

from gradscope.cli.interrupts import Interrupts, end_at_once

if TYPE_CHECKING:
    from collections.abc import Callable


def command() -> NoReturn:
    """Runs the command line in a process of its own: the script `gradscope`."""
    main(own_process=True)


def main(*, own_process: bool = False) -> NoReturn:
    """Runs the command line and exits.

    Args:
        own_process: Whether the process ends with the command line, and may leave without giving back what it has. A
            program that catches `SystemExit` goes on.
    """
    if own_process:
        end_at_once()
    from gradscope.cli.leaving import leave, leave_at_once, leave_behind_the_last, leave_threads
    from gradscope.cli.running.supervisor import is_started_by_command, runs_model, supervise
    from gradscope.cli.standard_streams import end_results, keep_stdout_for_results, open_streams
    from gradscope.errors import MachineError

    open_streams()
    ends_with = None
    if runs_model(sys.argv[1:]):
        with_parent = is_started_by_command(sys.argv[1:])
        try:
            ends_with = supervise(end_at_once if own_process else None, with_parent=with_parent)
        except MachineError as error:
            leave(_refused(error))
        if own_process:
            leave_behind_the_last()
        keep_stdout_for_results()
    elif own_process and sys.argv[1:2] != ["watch"]:  # which goes on for days
        leave_at_once()
    started = os.getpid()
    status = _status(ends_with)
    if os.getpid() != started:  # a process that the model forked came out of the model's code
        os._exit(status)
    if own_process:
        end_at_once(ends_with)
    if ends_with is not None:
        if own_process:
            leave_threads(status)
        end_results()  # what the model registered with atexit prints no result
    leave(status)


def _status(ends_with: Callable[[int], None] | None) -> int:
    """Returns the exit status of the command, which is recorded where it has to be."""
    with ExitStack() as guards:
        try:
            interrupts = guards.enter_context(Interrupts(ends_with))
        except RuntimeError as error:  # the system gives no more threads
            status = _refused(error)
            if ends_with is not None:
                ends_with(status)
            return status
        from functools import partial

        from gradscope.cli.error_boundary import guarded
        from gradscope.cli.running.starting_jax.joining import leave_failed
        from gradscope.dump.storage.writing.unpublished import remove_unpublished

        interrupts.on_interrupt(remove_unpublished)
        status = guarded(partial(_run, interrupts), sys.argv[1:])
        if ends_with is not None:
            ends_with(status)
            leave_failed(status)
        return status


def _refused(error: Exception) -> int:
    """Reports why the command cannot even begin, and returns the exit status."""
    from gradscope.cli.error_boundary import guarded

    def fail() -> NoReturn:
        raise error

    return guarded(fail, sys.argv[1:])


def _run(interrupts: Interrupts) -> int:
    from gradscope.cli.running.version import VERSION_OPTIONS, print_version

    if sys.argv[1:2] and sys.argv[1] in VERSION_OPTIONS:
        print_version()
        return 0
    from gradscope.cli.program import run

    return run(interrupts)
