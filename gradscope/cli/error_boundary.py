"""The error boundary turns every exception of a command into an exit status and a few lines on standard error.

Expected failures (`gradscope.errors`) state what failed and what to do. A failure of the environment (memory, a full
disk, a refused permission) is exit status 5. A reader that closed the pipe (`| head`) is no failure: the process ends
as quietly as one that SIGPIPE ends. Everything else is a bug of gradscope, and its message asks for a report. Nothing
else in gradscope catches `Exception`.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

from gradscope.cli.running.bug_report import bug_report
from gradscope.cli.running.interpreter_parts import InterpreterParts
from gradscope.cli.standard_streams import stderr, stdout
from gradscope.errors import GradscopeError, MachineError, ModelError, UsageError
from gradscope.naming import printable
from gradscope.naming.printable import without_middle

#: Exit statuses that no `GradscopeError` has. A shell reports SIGINT as 130 and SIGPIPE as 141.
BUG: Final = 70
INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 141

#: Errors of the operating system whose cause is neither gradscope nor the user's request.
_ENVIRONMENT: Final = frozenset(
    {errno.EACCES, errno.EBADF, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM,
     errno.ENOSPC, errno.EPERM, errno.EROFS}
)  # fmt: skip

#: What to do about some of them.
_HINTS: Final[Mapping[int, str]] = MappingProxyType({
    errno.EBADF: "the model closes files that are not its own",
    errno.EMFILE: "raise the limit on open files (ulimit -n), or let the model close its own",
})  # fmt: skip

#: How many handlers of signals may raise while they are taken away; each is called once more at most.
_MOST_HANDLERS: Final = 100

#: The longest line of a message, in characters: names in a file may have any number, and a message has several.
_LONGEST_LINE: Final = 4_000

#: A frame of the user's code, as Python writes it.
_FRAME: Final = re.compile(r'^  File "(.*)", line (\d+)', re.MULTILINE)

#: How the system says that it loads no library: for want of memory, or of files that may be open.
_UNLOADED: Final = " shared object"

#: How Python says that the system gives the process no more threads.
_NO_THREAD: Final = "can't start new thread"


def guarded(program: Callable[[], object], arguments: Sequence[str]) -> int:
    """Runs a program and returns its exit status; reports any failure on standard error.

    Args:
        program: The program. It returns its exit status, or Typer raises `SystemExit` with it; None is 0.
        arguments: The command line without the program's name. `--traceback` among them adds tracebacks to messages.

    Returns:
        The exit status.
    """
    # `--traceback` is looked for in the arguments because an error may come before options are parsed.
    parts = InterpreterParts()
    try:
        status = _status(program)
        _still(parts)
        return status
    except BrokenPipeError:
        return BROKEN_PIPE
    except BaseException as failure:  # a signal handler of the model may raise one of any class
        try:  # another may raise at the call itself, before anything in the function is guarded
            _still(parts)
        except BaseException:
            _still(parts)
        return _report(failure, parts.put_back(failure), arguments)
    finally:
        _release_output()


def _status(program: Callable[[], object]) -> int:
    """Runs a program to its end, with its output delivered, and returns its exit status."""
    try:
        status = program()
    except SystemExit as leaving:
        status = leaving.code
        if not _is_of_typer(leaving):  # its status says nothing about the command
            raise ModelError(
                f"the command was ended before it was done: SystemExit: {leaving}",
                hint="a signal handler or a thread of the model does so; let it return instead",
            ) from leaving
        # Typer exits with 1 on a broken pipe, which is our status for "different".
        if isinstance(leaving.__context__, BrokenPipeError):
            raise leaving.__context__ from None
    if status == INTERRUPTED:  # Typer exits with this on an interrupt, without a message
        raise KeyboardInterrupt
    if stdout() is not None:
        stdout().flush()
    return status if isinstance(status, int) else 0 if status is None else BUG


def _still(parts: InterpreterParts) -> None:
    """Takes the model's signals and timers from it: a handler that raises would end the process in the message."""
    for _ in range(_MOST_HANDLERS):
        try:  # `contextlib.suppress` would be two calls of Python more, where a handler may raise unguarded
            parts.still_signals()
            return
        except BaseException:  # noqa: S112
            continue


def _is_of_typer(leaving: SystemExit) -> bool:
    """Returns whether Typer raised an exit, which it does with the status of a command."""
    *_, (frame, _) = traceback.walk_tb(leaving.__traceback__)
    return str(frame.f_globals.get("__name__")).startswith("typer.")


def _release_output() -> None:
    """Flushes the standard streams, and redirects those that fail to the null device."""
    # Python flushes them again when it ends, which would fail once more and set an exit status of its own.
    for stream in filter(None, (stdout(), stderr())):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        except ValueError:  # the model has closed it
            pass


def _report(failure: BaseException, taken: Sequence[str], arguments: Sequence[str]) -> int:
    """Reports a failure on standard error, and which parts of Python were taken away, and returns its exit status."""
    status, found = _verdict(failure, taken, arguments)
    lines = [without_middle(printable(line), _LONGEST_LINE) for line in found]
    if _asks_for_annotations(arguments):
        _annotate(failure, lines, arguments)
    if "--traceback" in arguments:
        lines = [*map(printable, "".join(traceback.format_exception(failure)).splitlines()), *lines]
    if stderr() is not None:
        with contextlib.suppress(OSError, ValueError):  # standard error is closed, by the model where ValueError
            stderr().write("".join(f"{line}\n" for line in lines))
    return status


def _asks_for_annotations(arguments: Sequence[str]) -> bool:
    return "--format=github" in arguments or ("--format", "github") in itertools.pairwise(arguments)


def _annotate(failure: BaseException, lines: Sequence[str], arguments: Sequence[str]) -> None:
    """Prints what failed as an annotation, at the innermost of the user's lines, so that a failed job has one."""
    from gradscope.cli.source_files import path_in_repository
    from gradscope.presentation.render.for_ci.github import Annotation, annotations_text

    frames = _FRAME.findall(failure.user_frames) if isinstance(failure, ModelError) else ()
    file, line = frames[-1] if frames else ("", "")
    name = Path(file).name
    target = next((each for each in arguments if Path(each.partition(":")[0]).name == name), "")
    said = (each.removeprefix("gradscope: error: ") for each in lines if not each.startswith("  "))
    annotation = Annotation(
        level="error", title="gradscope", message="; ".join(said), source=f"{name}:{line}" if name else None
    )
    with contextlib.suppress(OSError, ValueError):  # standard output is closed, by the model where ValueError
        stdout().write(annotations_text([annotation], lambda known: path_in_repository(known, target)))


def _verdict(failure: BaseException, taken: Sequence[str], arguments: Sequence[str]) -> tuple[int, list[str]]:
    """Returns the exit status of a failure and the lines that report it."""
    if isinstance(failure, KeyboardInterrupt):
        return INTERRUPTED, ["gradscope: interrupted"]
    known = failure if isinstance(failure, GradscopeError) else None
    expected = known or _overlong_name(failure) or _environment_failure(failure) or _failure_of_user(failure)
    if expected is None and taken:
        text = (
            f"the model takes away or replaces {', '.join(taken)}, which is needed: {type(failure).__name__}: {failure}"
        )
        expected = ModelError(text, hint="let it put back what it changes")
    if expected is None:
        return BUG, bug_report(failure, arguments)
    return expected.exit_code, list(_error_lines(expected))


def _overlong_name(failure: BaseException) -> UsageError | None:
    """Returns the refusal of a path as a `UsageError`, where a name in it is too long; None for another failure."""
    # Python answers whether a file exists with this error, wherever that is asked.
    if not isinstance(failure, OSError) or failure.errno != errno.ENAMETOOLONG:
        return None
    name = str(failure.filename or "?")
    return UsageError(f"the file name is too long: {name:.60}...", hint="name a shorter path")


def _environment_failure(failure: BaseException) -> MachineError | None:
    """Returns a failure of the environment as a `MachineError`; None for a failure of another kind."""
    if (limited := _limit_failure(failure)) is not None:
        return limited
    if isinstance(failure, FileNotFoundError) and _has_no_folder():
        return MachineError("the current folder has been removed", hint="change to one that exists")
    if isinstance(failure, OSError) and failure.errno in _ENVIRONMENT and _is_of_output(failure):
        return MachineError(f"cannot write to standard output: {failure.strerror}")
    if isinstance(failure, OSError) and failure.errno in _ENVIRONMENT:
        on = f"{os.fsdecode(failure.filename)}: " if isinstance(failure.filename, str | bytes) else ""
        hint = _HINTS.get(failure.errno, "check free space and permissions")
        return MachineError(f"{on}{failure.strerror or failure}", hint=hint)
    return None


def _limit_failure(failure: BaseException) -> MachineError | None:
    """Returns the failure of a process that gets no more of something; None for any other."""
    if isinstance(failure, MemoryError):
        return MachineError("out of memory", hint="use a smaller --batch-size or --select fewer layers")
    if isinstance(failure, RuntimeError) and str(failure).startswith(_NO_THREAD):
        return MachineError(str(failure), hint="raise the limits on processes and memory (ulimit -u and -v)")
    if unloaded := _unloaded_library(failure):
        return MachineError(f"a library cannot be loaded: {unloaded}", hint="raise the limit on memory (ulimit -v)")
    return None


def _unloaded_library(failure: BaseException) -> str:
    """Returns how the system says that it loads no library, where that is why something is not imported; or ""."""
    at: BaseException | None = failure
    while isinstance(at, ImportError):
        for line in str(at).splitlines():  # NumPy's text has many
            if _UNLOADED in line:
                return line
        at = at.__cause__ or at.__context__
    return ""


def _failure_of_user(failure: BaseException) -> ModelError | None:
    """Returns what the user's code raised where gradscope had not called it; None for any other failure."""
    if "gradscope.tracing.user_frames" not in sys.modules:  # no model was loaded
        return None
    from gradscope.tracing.user_frames import failure_of_user

    return failure_of_user(failure)


def _is_of_output(failure: OSError) -> bool:
    """Returns whether standard output fails so: what it could not deliver is still to be written."""
    try:
        if stdout() is not None:
            stdout().flush()
    except OSError as error:
        return error.errno == failure.errno
    except ValueError:  # the model has closed it
        pass
    return False


def _has_no_folder() -> bool:
    try:
        Path.cwd()
    except FileNotFoundError:
        return True
    return False


def _error_lines(error: GradscopeError) -> Iterator[str]:
    yield from f"gradscope: error: {error.message}".splitlines()
    if error.hint is not None:
        yield from f"hint: {error.hint}".splitlines()
    if isinstance(error, ModelError):
        yield from error.user_frames.splitlines()
